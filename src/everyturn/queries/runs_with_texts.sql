-- Which runs are these, or streamed one of these texts?
--
-- texts   as jsonb prints them

SELECT DISTINCT e.run_id
  FROM agent_events e,
       LATERAL (SELECT e.event::text AS said OFFSET 0) AS said  -- printed once, however many texts there are
 WHERE e.run_id = ANY (:'runs'::text[])
    OR EXISTS (SELECT FROM unnest(:'texts'::text[]) AS q (text) WHERE strpos(said.said, q.text) > 0);
