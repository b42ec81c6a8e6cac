DELETE FROM agent_events WHERE run_id = $1
