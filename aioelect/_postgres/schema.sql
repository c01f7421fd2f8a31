-- What PostgresStore needs, in a schema of its own. `await store.create()` runs this file; so may you, with psql.
-- Safe to repeat. Later versions add to it and change nothing, so that two versions may run side by side.

CREATE SCHEMA IF NOT EXISTS aioelect;

-- One row per name that is held, or was held by somebody who crashed. Not the owner value itself: its SHA-256.
CREATE TABLE IF NOT EXISTS aioelect.leases (
    name     text        PRIMARY KEY,
    owner    bytea       NOT NULL,
    token    bigint      NOT NULL,
    expires  timestamptz NOT NULL,
    id       text        NOT NULL,
    identity text        NOT NULL
);

-- Fencing tokens. One sequence for all names, so that the tokens of a name rise also after its row is gone. CACHE 1: a
-- session that put numbers by would hand them out too late.
CREATE SEQUENCE IF NOT EXISTS aioelect.tokens AS bigint CACHE 1;

-- Move the sequence above `_least`, where it is not. The room above it is for numbers drawn meanwhile: nextval waits for
-- no lock.
CREATE OR REPLACE FUNCTION aioelect.raise_tokens(_least bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('aioelect.tokens', 0));
    IF (SELECT last_value FROM aioelect.tokens) < _least THEN
        PERFORM setval('aioelect.tokens', _least + 1000000);
    END IF;
END $$;

-- What each new connection does first. A server that took over may have lost the last numbers of its predecessor: the
-- clock, in microseconds, is above any that was drawn. And what crashed holders left an hour ago is removed.
CREATE OR REPLACE FUNCTION aioelect.greet() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM aioelect.raise_tokens((extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 1000000);
    DELETE FROM aioelect.leases AS l USING (
        SELECT name FROM aioelect.leases WHERE expires < clock_timestamp() - interval '1 hour'
        FOR UPDATE SKIP LOCKED
    ) AS old WHERE l.name = old.name;
END $$;

-- Notify those who listen to a name, and say how many sessions other than `_own` that are. A listener holds a shared
-- advisory lock: while we have it alone nobody listens, and nobody begins to before we have committed. So what nobody
-- waits for costs no NOTIFY, which would make all commits of the server stand in line.
CREATE OR REPLACE FUNCTION aioelect.tell(_channel text, _ears bigint, _own integer, _notice json)
RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    IF pg_try_advisory_xact_lock(_ears) THEN
        RETURN 0;
    END IF;
    PERFORM pg_notify(_channel, _notice::text);
    RETURN (
        SELECT count(*) FROM pg_locks
        WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted AND pid <> _own AND objsubid = 1
          AND (classid::bigint << 32) | objid::bigint = _ears
    );
END $$;

-- Claim a name if it is free. Who finds its own value has won before (an answer got lost): fresh ttl, same token.
-- A try that fails writes nothing and waits for nobody; any other waits at most `_patience` ms for a lock.
CREATE OR REPLACE FUNCTION aioelect.acquire(
    _name text, _owner bytea, _ttl double precision, _id text, _identity text, _floor bigint, _patience integer,
    _channel text, _ears bigint, _own integer,
    OUT won boolean, OUT token bigint, OUT remaining double precision, OUT identity text, OUT id text
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('lock_timeout', _patience::text, true);
    LOOP
        SELECT l.owner = _owner, l.token, extract(epoch FROM l.expires - clock_timestamp()), l.identity, l.id
            INTO won, token, remaining, identity, id
            FROM aioelect.leases AS l WHERE l.name = _name AND l.expires > clock_timestamp();
        IF FOUND THEN
            IF NOT won THEN
                RETURN;
            END IF;
            UPDATE aioelect.leases AS l SET expires = clock_timestamp() + make_interval(secs => _ttl)
                WHERE l.name = _name AND l.owner = _owner AND l.expires > clock_timestamp();
            IF FOUND THEN
                RETURN;
            END IF;
            CONTINUE;
        END IF;
        INSERT INTO aioelect.leases AS l (name, owner, token, expires, id, identity)
            VALUES (_name, _owner, 0, clock_timestamp() + make_interval(secs => _ttl), _id, _identity)
            ON CONFLICT ON CONSTRAINT leases_pkey DO UPDATE
            SET owner = excluded.owner, expires = clock_timestamp() + make_interval(secs => _ttl),
                id = excluded.id, identity = excluded.identity
            WHERE l.expires <= clock_timestamp();
        CONTINUE WHEN NOT FOUND;
        -- Drawn only now: a number drawn before the name was ours might be overtaken by another's.
        token := nextval('aioelect.tokens');
        IF token <= _floor THEN
            PERFORM aioelect.raise_tokens(_floor);
            token := nextval('aioelect.tokens');
        END IF;
        UPDATE aioelect.leases AS l SET token = acquire.token WHERE l.name = _name;
        PERFORM aioelect.tell(_channel, _ears, _own, json_build_object(
            'kind', 'acquired', 'token', token, 'id', _id, 'identity', _identity, 'ttl', _ttl));
        won := true;
        RETURN;
    END LOOP;
END $$;

-- Prolong a claim if it is ours; never create it. Else: whose it is, or nulls.
CREATE OR REPLACE FUNCTION aioelect.renew(
    _name text, _owner bytea, _ttl double precision, _patience integer,
    OUT ours boolean, OUT token bigint, OUT remaining double precision, OUT identity text, OUT id text
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('lock_timeout', _patience::text, true);
    UPDATE aioelect.leases AS l SET expires = clock_timestamp() + make_interval(secs => _ttl)
        WHERE l.name = _name AND l.owner = _owner AND l.expires > clock_timestamp();
    ours := FOUND;
    IF NOT ours THEN
        SELECT l.token, extract(epoch FROM l.expires - clock_timestamp()), l.identity, l.id
            INTO token, remaining, identity, id
            FROM aioelect.leases AS l WHERE l.name = _name AND l.expires > clock_timestamp();
    END IF;
END $$;

-- Give a claim up if it is ours: at once, or `_keep` seconds from now but never later than its ttl; and tell who waits.
CREATE OR REPLACE FUNCTION aioelect.release(
    _name text, _owner bytea, _keep double precision, _id text, _identity text, _patience integer,
    _channel text, _ears bigint, _own integer,
    OUT ours boolean, OUT told integer, OUT token bigint, OUT remaining double precision, OUT identity text, OUT id text
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('lock_timeout', _patience::text, true);
    IF _keep > 0 THEN
        UPDATE aioelect.leases AS l
            SET expires = least(l.expires, clock_timestamp() + make_interval(secs => _keep))
            WHERE l.name = _name AND l.owner = _owner AND l.expires > clock_timestamp();
        ours := FOUND;
    ELSE
        DELETE FROM aioelect.leases AS l WHERE l.name = _name AND l.owner = _owner
            RETURNING l.expires > clock_timestamp() INTO ours;
        ours := coalesce(ours, false);
    END IF;
    IF ours THEN
        told := aioelect.tell(_channel, _ears, _own, json_build_object(
            'kind', 'released', 'id', _id, 'identity', _identity));
        RETURN;
    END IF;
    SELECT l.token, extract(epoch FROM l.expires - clock_timestamp()), l.identity, l.id
        INTO token, remaining, identity, id
        FROM aioelect.leases AS l WHERE l.name = _name AND l.expires > clock_timestamp();
END $$;
