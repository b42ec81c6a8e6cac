-- Which past turns are like this text and survived review, the most alike first?
--
-- Left out are turns whose standing verdict is `not_verdict` (bad, where it is NULL): the latest human one, or, where no
-- human has spoken, the latest of any evaluator. A turn comes once, however many verdicts it has. A verdict on a whole
-- conversation stands apart from those on its last turn.
--
-- agent, kind, tool, repo, since   may be NULL
-- matching                         a JSON object: every key of it equals that key of the payload, as text; or NULL
-- vector, embedded_by              the vector of the text, and the embedder that made it
-- text                             where there is no vector: the newest 500 turns that match are ranked by its words
-- limit                            10 where it is NULL

WITH words AS MATERIALIZED (
    SELECT quote_literal(w.word)::tsquery AS query
      FROM unnest(tsvector_to_array(everyturn_tsvector(:'text'::text))) AS w (word)
     WHERE :'vector'::vector IS NULL
     ORDER BY length(w.word) DESC, w.word
     LIMIT 32
), matching AS NOT MATERIALIZED (
    SELECT t.*
      FROM agent_turns t
     WHERE (:'agent'::text IS NULL OR t.agent = :'agent'::text)
       AND (:'kind'::text IS NULL OR t.kind = :'kind'::text)
       AND (:'tool'::text IS NULL OR t.payload ->> 'toolName' = :'tool'::text)
       AND (:'repo'::text IS NULL OR t.payload ->> 'repo' = :'repo'::text)
       AND (:'matching'::jsonb IS NULL OR NOT EXISTS (
               SELECT FROM jsonb_each_text(:'matching'::jsonb) AS w (key, value)
                WHERE t.payload ->> w.key IS DISTINCT FROM w.value))
       AND (:'since'::timestamptz IS NULL OR t.created_at >= :'since'::timestamptz)
       -- Of one turn at a time: as a join it would be made for the whole table.
       AND coalesce((
               SELECT e.verdict
                 FROM agent_evals e
                WHERE e.turn_id = t.id AND e.conversation = t.conversation
                  AND coalesce(e.payload ->> 'target', 'turn') = 'turn'
                ORDER BY split_part(e.evaluator, ':', 1) = 'human' DESC, e.created_at DESC, e.id DESC
                LIMIT 1), '') <> coalesce(:'not_verdict'::text, 'bad')
), near AS MATERIALIZED (
    SELECT m.*, 1 - (m.embedding <=> :'vector'::vector) AS sim
      FROM matching m
     WHERE :'vector'::vector IS NOT NULL
       AND m.embedded_by = :'embedded_by'::text
     ORDER BY m.embedding <=> :'vector'::vector
     LIMIT coalesce(:'limit'::int, 10)
), newest AS MATERIALIZED (
    SELECT m.*
      FROM matching m
     WHERE :'vector'::vector IS NULL
       AND everyturn_turn_text(m.kind, m.payload) <> ''
     ORDER BY m.created_at DESC, m.id DESC
     LIMIT 500
), worded AS (
    SELECT n.*, (SELECT (count(*) FILTER (WHERE v.tsv @@ w.query))::float8 / nullif(count(*), 0) FROM words w) AS sim
      FROM newest n
     CROSS JOIN LATERAL (SELECT everyturn_tsvector(everyturn_turn_text(n.kind, n.payload)) AS tsv) AS v
), found AS (
    SELECT * FROM near
    UNION ALL
    SELECT * FROM worded WHERE sim > 0
)
SELECT f.id, f.seq, f.conversation, f.agent, f.kind, f.payload, f.created_at, f.sim,
       (SELECT e.verdict
          FROM agent_evals e
         WHERE e.turn_id = f.id AND e.conversation = f.conversation
           AND coalesce(e.payload ->> 'target', 'turn') = 'turn'
         ORDER BY split_part(e.evaluator, ':', 1) = 'human' DESC, e.created_at DESC, e.id DESC
         LIMIT 1) AS verdict
  FROM found f
 ORDER BY f.sim DESC, f.seq DESC
 LIMIT coalesce(:'limit'::int, 10);
