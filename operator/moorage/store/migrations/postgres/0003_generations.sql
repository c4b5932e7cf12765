-- I1: the ranges of offsets that repairs dropped, as JSON: [[first, last], …]. The records that say so are in the journal.

ALTER TABLE executions ADD COLUMN dropped TEXT;

CREATE TRIGGER executions_keep_generations BEFORE UPDATE ON executions FOR EACH ROW WHEN (
    OLD.dropped IS NOT NULL
    AND left(coalesce(NEW.dropped, ''), length(OLD.dropped) - 1) <> left(OLD.dropped, length(OLD.dropped) - 1)
) EXECUTE FUNCTION moorage_only_forward();

ALTER TABLE executions ENABLE ALWAYS TRIGGER executions_keep_generations;
