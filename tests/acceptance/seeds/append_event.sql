INSERT INTO agent_events
         (run_id, agent_id, agent_name, turn, tool_name, tool_call_id, internal_call_id, event)
       VALUES ($1, $2, $3, $4, $5, $6, $7, $8::jsonb)
