-- The rows of a table that have a text and no vector of this embedder: one page of them, by id.
--
-- relation   agent_turns, agent_episodic, agent_semantic or eval_case
-- embedder   the embedder's name
-- after      the last id of the page before; NULL for the first
-- page       the number of rows

SELECT o.id, o.text
  FROM (
      SELECT t.id, everyturn_turn_text(t.kind, t.payload) AS text, t.embedded_by
        FROM agent_turns t
       WHERE :'relation'::text = 'agent_turns'
         AND t.kind IN ('user', 'model', 'tool_result')
      UNION ALL
      SELECT e.id, e.text, e.embedded_by FROM agent_episodic e WHERE :'relation'::text = 'agent_episodic'
      UNION ALL
      SELECT s.id, s.text, s.embedded_by FROM agent_semantic s WHERE :'relation'::text = 'agent_semantic'
      UNION ALL
      SELECT c.id, c.prompt, c.embedded_by FROM eval_case c WHERE :'relation'::text = 'eval_case'
  ) AS o
 WHERE o.embedded_by IS DISTINCT FROM :'embedder'::text
   AND (:'after'::uuid IS NULL OR o.id > :'after'::uuid)
   AND btrim(o.text) <> ''
 ORDER BY o.id
 LIMIT :'page'::bigint;
