SELECT run_id, agent_id, agent_name, turn, tool_name, tool_call_id,
              internal_call_id, event, created_at
       FROM agent_events
       WHERE run_id = $1
       ORDER BY created_at ASC, id ASC
