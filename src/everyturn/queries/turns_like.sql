-- Which turns are like this text: by meaning (the vector half), by words (the lexical half), or both?
-- Each word of the query brings its own candidates, so that a common word cannot crowd out a rare one; so do all words
-- together, because of common words any few rows are taken.
WITH words AS MATERIALIZED (
    SELECT w.word, quote_literal(w.word)::tsquery AS query
      FROM unnest(tsvector_to_array(everyturn_tsvector(:'text'::text))) AS w (word)
     ORDER BY length(w.word) DESC, w.word
     LIMIT 32
), sought AS MATERIALIZED (
    SELECT query FROM words
     UNION
    SELECT string_agg(quote_literal(word), ' & ')::tsquery FROM words HAVING count(*) > 1
), near AS MATERIALIZED (
    SELECT t.id, t.embedding <=> :'vector'::vector AS distance
      FROM agent_turns t
     WHERE :'vector'::vector IS NOT NULL
       AND t.embedded_by = :'embedded_by'::text
       AND (:'agent'::text IS NULL OR t.agent = :'agent'::text)
       AND (:'conversation'::uuid IS NULL OR t.conversation = :'conversation'::uuid)
       AND (:'kind'::text IS NULL OR t.kind = :'kind'::text)
       AND (:'since'::timestamptz IS NULL OR t.created_at >= :'since'::timestamptz)
       AND (:'until'::timestamptz IS NULL OR t.created_at < :'until'::timestamptz)
       AND (:'where'::jsonb = '{}' OR NOT EXISTS (
               SELECT FROM jsonb_each_text(:'where'::jsonb) AS w (key, value)
                WHERE t.payload ->> w.key IS DISTINCT FROM w.value))
     ORDER BY t.embedding <=> :'vector'::vector
     LIMIT greatest(50, :'limit'::int)
), worded AS MATERIALIZED (
    SELECT DISTINCT c.id
      FROM sought s
     CROSS JOIN LATERAL (
           SELECT t.id
             FROM agent_turns t
            WHERE everyturn_tsvector(t.payload ->> 'text') @@ s.query
              AND t.kind IN ('user', 'model')
              AND (:'agent'::text IS NULL OR t.agent = :'agent'::text)
              AND (:'conversation'::uuid IS NULL OR t.conversation = :'conversation'::uuid)
              AND (:'kind'::text IS NULL OR t.kind = :'kind'::text)
              AND (:'since'::timestamptz IS NULL OR t.created_at >= :'since'::timestamptz)
              AND (:'until'::timestamptz IS NULL OR t.created_at < :'until'::timestamptz)
              AND (:'where'::jsonb = '{}' OR NOT EXISTS (
                      SELECT FROM jsonb_each_text(:'where'::jsonb) AS f (key, value)
                       WHERE t.payload ->> f.key IS DISTINCT FROM f.value))
            LIMIT greatest(100, :'limit'::int)
           ) AS c
), found AS (
    SELECT id FROM near UNION SELECT id FROM worded
), scored AS (
    SELECT t.id, t.seq, t.conversation, t.agent, t.kind, t.payload, t.created_at,
           CASE WHEN t.embedded_by = :'embedded_by'::text
                THEN 1 - (t.embedding <=> :'vector'::vector) END AS similarity,
           -- A word that is an identifier weighs ten others: ordinary words are what the vector is for.
           coalesce((SELECT sum(CASE WHEN w.word ~ '[0-9_.:/#@]' THEN 10 ELSE 1 END)
                            FILTER (WHERE v.tsv @@ w.query)::float8
                          / sum(CASE WHEN w.word ~ '[0-9_.:/#@]' THEN 10 ELSE 1 END)
                       FROM words w), 0) AS lexical
      FROM found
      JOIN agent_turns t USING (id)
     CROSS JOIN LATERAL (SELECT everyturn_tsvector(everyturn_turn_text(t.kind, t.payload)) AS tsv) AS v
)
SELECT s.id, s.seq, s.conversation, s.agent, s.kind, s.payload, s.created_at, s.similarity, s.lexical,
       CASE WHEN :'vector'::vector IS NULL THEN s.lexical
            ELSE coalesce(s.similarity, 0) + 0.1 * s.lexical END AS score
  FROM scored s
 ORDER BY score DESC, s.seq DESC
 LIMIT :'limit'::int;
