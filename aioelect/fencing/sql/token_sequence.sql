-- Fencing tokens from the database that is written to. Never with a CACHE above 1: sessions would hand out numbers
-- that fall.
CREATE SEQUENCE IF NOT EXISTS aioelect_token AS BIGINT CACHE 1 NO CYCLE;
