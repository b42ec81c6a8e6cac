-- How many values are masked in what is stored? One row for each table that holds any.
SELECT counted.name, counted.rows_masked, counted.masks
  FROM (
      SELECT 'agent_turns' AS name, count(*) AS rows_masked,
             sum((length(t.payload::text) - length(replace(t.payload::text, '[redacted]', ''))) / 10)::bigint AS masks
        FROM agent_turns t WHERE t.payload::text LIKE '%[redacted]%'
      UNION ALL
      SELECT 'agent_events', count(*),
             sum((length(e.event::text) - length(replace(e.event::text, '[redacted]', ''))) / 10)::bigint
        FROM agent_events e WHERE e.event::text LIKE '%[redacted]%'
      UNION ALL
      SELECT 'eval_case', count(*),
             sum((length(c.c) - length(replace(c.c, '[redacted]', ''))) / 10)::bigint
        FROM (SELECT concat(k.prompt, k.context, k.reference) AS c FROM eval_case k) AS c WHERE c.c LIKE '%[redacted]%'
  ) AS counted
 WHERE counted.rows_masked > 0
 ORDER BY counted.name;
