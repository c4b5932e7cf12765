-- I1: the ranges of offsets that repairs dropped, as JSON: [[first, last], …]. The records that say so are in the journal.

ALTER TABLE executions ADD COLUMN dropped TEXT;

CREATE TRIGGER executions_keep_generations BEFORE UPDATE OF dropped ON executions
WHEN OLD.dropped IS NOT NULL
    AND substr(coalesce(NEW.dropped, ''), 1, length(OLD.dropped) - 1) <> substr(OLD.dropped, 1, length(OLD.dropped) - 1)
BEGIN
    SELECT RAISE(ABORT, 'executions only go forward: no generation comes back');
END;
