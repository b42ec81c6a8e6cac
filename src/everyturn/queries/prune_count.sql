-- What would go from these conversations? The turns before the cut of each, their verdicts and their bytes.
SELECT count(*) AS turns, coalesce(sum(d.bytes), 0)::bigint AS bytes,
       (SELECT count(*) FROM agent_evals e
         WHERE e.turn_id IN (SELECT p.id FROM everyturn_prunable(
             string_to_array(:'conversations'::text, ',')::uuid[], string_to_array(:'cuts'::text, ',')::bigint[],
             :'agent'::text, :'run_id'::text, NULL) AS p)) AS verdicts,
       0::bigint AS memories
  FROM everyturn_prunable(
           string_to_array(:'conversations'::text, ',')::uuid[], string_to_array(:'cuts'::text, ',')::bigint[],
           :'agent'::text, :'run_id'::text, NULL) AS d;
