-- For a table that other programs write to: the token in a row never falls, whoever writes. An UPDATE that carries an
-- older token fails with SQLSTATE ZF001. One that carries none leaves the token as it is, and passes.
CREATE OR REPLACE FUNCTION aioelect_refuse_stale() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    offered TEXT := coalesce(to_jsonb(NEW) ->> TG_ARGV[0], '0');
    newest TEXT := to_jsonb(OLD) ->> TG_ARGV[0];
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'ZF001',
        MESSAGE = format('%s: token %s is older than %s', TG_TABLE_NAME, offered, newest),
        HINT = 'A newer holder has written: stop.';
END
$$;

CREATE OR REPLACE TRIGGER aioelect_refuse_stale BEFORE UPDATE ON guarded_table FOR EACH ROW
    WHEN (coalesce(NEW.fence_token, 0) < OLD.fence_token)
    EXECUTE FUNCTION aioelect_refuse_stale('fence_token');
