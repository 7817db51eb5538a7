-- Why a run failed (JSON), known once it is closed: class, decisive line, and what may be repeated.
ALTER TABLE assignments ADD COLUMN cause TEXT;
