-- The newest fencing token that has been seen for each resource. A guarded transaction locks the row of its resource,
-- so a resource is written to by one transaction at a time: choose resources as fine as writes may run side by side.
-- Rows are never to be deleted while a holder with an older token may still be alive.
CREATE TABLE IF NOT EXISTS aioelect_fence (
    resource TEXT COLLATE "C" PRIMARY KEY,
    token BIGINT NOT NULL CHECK (token > 0),
    seen_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
