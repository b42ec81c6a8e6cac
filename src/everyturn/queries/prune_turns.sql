-- Remove turns before the cut of each of these conversations, at most `batch` of them; verdicts go with their turns, and
-- an expired memory with the turn it was made from. Cases and datasets stay as they are.
WITH doomed AS MATERIALIZED (
    SELECT p.id, p.bytes
      FROM everyturn_prunable(
               string_to_array(:'conversations'::text, ',')::uuid[], string_to_array(:'cuts'::text, ',')::bigint[],
               :'agent'::text, :'run_id'::text, :'batch'::bigint) AS p
), verdicts AS MATERIALIZED (
    SELECT count(*) AS count FROM agent_evals e JOIN doomed d ON d.id = e.turn_id
), episodic AS (
    DELETE FROM agent_episodic m USING doomed d WHERE m.source_turn = d.id RETURNING m.id
), semantic AS (
    DELETE FROM agent_semantic m USING doomed d WHERE m.source_turn = d.id RETURNING m.id
), procedural AS (
    DELETE FROM agent_procedural m USING doomed d WHERE m.source_turn = d.id RETURNING m.id
), gone AS (
    DELETE FROM agent_turns t USING doomed d WHERE t.id = d.id RETURNING d.bytes
)
SELECT (SELECT count(*) FROM gone) AS turns,
       (SELECT coalesce(sum(g.bytes), 0)::bigint FROM gone g) AS bytes,
       (SELECT v.count FROM verdicts v) AS verdicts,
       (SELECT count(*) FROM episodic) + (SELECT count(*) FROM semantic) + (SELECT count(*) FROM procedural) AS memories;
