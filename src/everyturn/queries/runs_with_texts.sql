-- Which runs are these, or streamed one of these texts?
--
-- texts   as jsonb prints them

SELECT DISTINCT e.run_id
  FROM agent_events e
 WHERE e.run_id = ANY (:'runs'::text[])
    OR EXISTS (SELECT FROM unnest(:'texts'::text[]) AS q (text) WHERE strpos(e.event::text, q.text) > 0);
