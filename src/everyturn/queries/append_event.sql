-- Append one stream event.
INSERT INTO agent_events
       (run_id, agent_id, agent_name, turn, tool_name, tool_call_id, internal_call_id, event)
VALUES (:'run_id', :'agent_id', :'agent_name', :'turn'::int, :'tool_name', :'tool_call_id', :'internal_call_id',
        :'event'::jsonb)
RETURNING id, created_at;
