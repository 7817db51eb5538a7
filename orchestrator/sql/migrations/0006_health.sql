-- The alarms that hold for a run (JSON), as last looked at; and why an alarm wants the run to save and stop.
ALTER TABLE progress ADD COLUMN alarms TEXT NOT NULL DEFAULT '[]';
ALTER TABLE assignments ADD COLUMN stop TEXT NOT NULL DEFAULT '';
