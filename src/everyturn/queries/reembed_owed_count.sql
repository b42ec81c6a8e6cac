-- Counts the rows of each table that have a text and no vector of this embedder.
--
-- embedder   the embedder's name

SELECT (SELECT count(*) FROM agent_turns t
         WHERE t.embedded_by IS DISTINCT FROM :'embedder'::text
           AND t.kind IN ('user', 'model', 'tool_result')
           AND btrim(everyturn_turn_text(t.kind, t.payload)) <> '') AS agent_turns,
       (SELECT count(*) FROM agent_episodic e
         WHERE e.embedded_by IS DISTINCT FROM :'embedder'::text AND btrim(e.text) <> '') AS agent_episodic,
       (SELECT count(*) FROM agent_semantic s
         WHERE s.embedded_by IS DISTINCT FROM :'embedder'::text AND btrim(s.text) <> '') AS agent_semantic,
       (SELECT count(*) FROM eval_case c
         WHERE c.embedded_by IS DISTINCT FROM :'embedder'::text AND btrim(c.prompt) <> '') AS eval_case;
