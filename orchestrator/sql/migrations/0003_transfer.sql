-- What is being copied for a run at this moment (JSON): what, bytes, total, rate, at; empty when nothing is.
ALTER TABLE progress ADD COLUMN transfer TEXT NOT NULL DEFAULT '{}';
