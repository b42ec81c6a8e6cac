-- Remove the events of one run.
DELETE FROM agent_events WHERE run_id = :'run_id'::text;
