-- Which facts answer this question? One statement: filters, vector evidence, lexical evidence, and their fusion.
--
-- Every filter may be empty:
--   scope, agent        equal to the column
--   subjects            the fact has all of them
--   has, path, exactly  attributes: contains this object; satisfies this jsonpath; has these keys with these values
--   present, absent     attributes: has all of these keys; has none of these
--   since, until        valid_from within [since, until)
--   as_of               what was true at that time; empty is what is true now
-- text           the question; empty lists by recency
-- vector         its vector, made by embedded_by; empty leaves the words
-- candidates     how many rows each kind of evidence contributes, at least `row_limit`
--
-- score: cosine similarity + 0.3 x the share of the question's identifiers + 0.02 x the share of its words.
-- A row whose vector is owed is given 0.6 x the share of the words in place of the cosine. Without a vector of the
-- question it is the share of the words, the rarer counting more, + 0.3 x the share of the identifiers.

WITH live AS NOT MATERIALIZED (
    SELECT m.*
      FROM agent_semantic m
     WHERE (nullif(:'scope'::text, '') IS NULL OR m.scope = :'scope'::text)
       AND (nullif(:'agent'::text, '') IS NULL OR m.agent = :'agent'::text)
       AND (nullif(:'subjects'::text, '') IS NULL OR m.subjects @> nullif(:'subjects'::text, '')::text[])
       AND (nullif(:'has'::text, '') IS NULL OR m.attributes @> nullif(:'has'::text, '')::jsonb)
       AND (nullif(:'path'::text, '') IS NULL OR m.attributes @@ nullif(:'path'::text, '')::jsonpath)
       AND (nullif(:'present'::text, '') IS NULL OR m.attributes ?& nullif(:'present'::text, '')::text[])
       AND (nullif(:'absent'::text, '') IS NULL OR NOT m.attributes ?| nullif(:'absent'::text, '')::text[])
       AND (nullif(:'exactly'::text, '') IS NULL OR NOT EXISTS (
               SELECT FROM jsonb_each(nullif(:'exactly'::text, '')::jsonb) AS wanted (key, value)
                WHERE m.attributes -> wanted.key IS DISTINCT FROM wanted.value))
       AND (nullif(:'since'::text, '') IS NULL OR m.valid_from >= nullif(:'since'::text, '')::timestamptz)
       AND (nullif(:'until'::text, '') IS NULL OR m.valid_from < nullif(:'until'::text, '')::timestamptz)
       AND (m.expires_at IS NULL OR m.expires_at > now())
       AND CASE
               WHEN nullif(:'as_of'::text, '') IS NULL THEN m.superseded_by IS NULL
               ELSE m.valid_from <= nullif(:'as_of'::text, '')::timestamptz
                    AND (m.valid_until IS NULL OR m.valid_until > nullif(:'as_of'::text, '')::timestamptz)
           END
),
terms AS MATERIALIZED (
    SELECT * FROM everyturn_terms(:'text'::text)
),
-- Meaning: the nearest by the vector index.
near AS MATERIALIZED (
    SELECT l.id
      FROM live l
     WHERE nullif(:'vector'::text, '') IS NOT NULL AND l.embedded_by = :'embedded_by'::text
     ORDER BY l.embedding <=> nullif(:'vector'::text, '')::vector
     LIMIT :'candidates'::bigint
),
-- The same without the index, when that did not find enough: `+ 0` is what keeps the index away.
nearest AS MATERIALIZED (
    SELECT l.id
      FROM live l
     WHERE nullif(:'vector'::text, '') IS NOT NULL AND l.embedded_by = :'embedded_by'::text
       AND (SELECT count(*) FROM near) < :'row_limit'::bigint
     ORDER BY (l.embedding <=> nullif(:'vector'::text, '')::vector) + 0
     LIMIT :'candidates'::bigint
),
-- Identifiers: the nearest of the rows that hold one.
named AS MATERIALIZED (
    SELECT l.id
      FROM live l
     WHERE nullif(:'vector'::text, '') IS NOT NULL AND l.embedded_by = :'embedded_by'::text
       AND l.tsv @@ everyturn_identifiers(:'text'::text)
     ORDER BY l.embedding <=> nullif(:'vector'::text, '')::vector
     LIMIT :'candidates'::bigint
),
-- Words, for the rows whose vector is owed or was made by another embedder.
owed AS MATERIALIZED (
    SELECT l.id
      FROM live l,
           LATERAL (SELECT l.tsv || '' AS tsv OFFSET 0) AS held,
           LATERAL (SELECT sum(t.word + t.identifier) AS share FROM terms t WHERE held.tsv @@ t.term) AS found
     WHERE nullif(:'vector'::text, '') IS NOT NULL
       AND (l.embedded_by IS NULL OR l.embedded_by < :'embedded_by'::text OR l.embedded_by > :'embedded_by'::text)
       AND l.tsv @@ everyturn_tsquery(:'text'::text)
     ORDER BY found.share DESC, l.valid_from DESC, l.id DESC
     LIMIT :'candidates'::bigint
),
-- Words alone: the rows that hold one of the rarer ones, and what each holds of them all.
matched AS MATERIALIZED (
    SELECT l.id, l.valid_from, t.lexeme, t.identifier
      FROM live l,
           LATERAL (SELECT l.tsv || '' AS tsv OFFSET 0) AS held
      JOIN terms t ON held.tsv @@ t.term
     WHERE nullif(:'vector'::text, '') IS NULL
       AND l.tsv @@ (SELECT everyturn_rarer_terms(:'text'::text, 'agent_semantic'))
),
weights AS MATERIALIZED (
    SELECT w.lexeme, w.term, w.identifier, w.weight / sum(w.weight) OVER () AS word
      FROM (
          SELECT t.lexeme, t.term, t.identifier,
                 ln(2 + (SELECT count(DISTINCT id) FROM matched)::float8 / greatest(1, count(m.id))) AS weight
            FROM terms t
            LEFT JOIN matched m USING (lexeme)
           GROUP BY t.lexeme, t.term, t.identifier
      ) AS w
),
worded AS MATERIALIZED (
    SELECT m.id
      FROM matched m
      JOIN weights w USING (lexeme)
     GROUP BY m.id, m.valid_from
     ORDER BY sum(w.word + w.identifier) DESC, m.valid_from DESC, m.id DESC
     LIMIT :'candidates'::bigint
),
-- No question: the newest.
newest AS MATERIALIZED (
    SELECT l.id
      FROM live l
     WHERE nullif(:'text'::text, '') IS NULL
     ORDER BY l.valid_from DESC, l.id DESC
     LIMIT :'row_limit'::bigint
),
weighed AS MATERIALIZED (
    SELECT m.id,
           m.valid_from,
           nullif(CASE WHEN m.embedded_by = :'embedded_by'::text
                       THEN m.embedding <=> nullif(:'vector'::text, '')::vector END, 'NaN') AS distance,
           lexical.word,
           lexical.identifier,
           lexical.matched
      FROM (SELECT id FROM near UNION SELECT id FROM nearest UNION SELECT id FROM named
            UNION SELECT id FROM owed UNION SELECT id FROM worded UNION SELECT id FROM newest) AS candidate
      JOIN agent_semantic m USING (id)
     -- Fetched once, however many lexemes it is asked for: `||` makes a copy in memory.
     CROSS JOIN LATERAL (SELECT m.tsv || '' AS tsv OFFSET 0) AS held
     CROSS JOIN LATERAL (
           SELECT coalesce(sum(w.word), 0) AS word, coalesce(sum(w.identifier), 0) AS identifier,
                  array_agg(w.lexeme ORDER BY w.identifier DESC, w.word DESC, w.lexeme) AS matched
             FROM weights w
            WHERE held.tsv @@ w.term
           ) AS lexical
),
ranked AS (
    SELECT w.id,
           w.valid_from,
           w.matched,
           1 - w.distance AS similarity,
           CASE WHEN w.word > 0 THEN rank() OVER (ORDER BY w.identifier + w.word DESC) END AS lexical_rank,
           CASE WHEN w.distance IS NOT NULL THEN rank() OVER (ORDER BY w.distance) END AS vector_rank,
           CASE
               WHEN nullif(:'text'::text, '') IS NOT NULL
               THEN coalesce(1 - w.distance,
                              CASE WHEN nullif(:'vector'::text, '') IS NULL THEN 0.98 ELSE 0.6 END * w.word)
                    + 0.3 * w.identifier + 0.02 * w.word
           END AS score
      FROM weighed w
)
SELECT m.id, m.scope, m.agent, m.subjects, m.text, m.attributes, m.embedded_by, m.created_at, m.valid_from,
       m.valid_until, m.superseded_by, m.expires_at, m.source_turn, r.lexical_rank, r.vector_rank, r.score,
       r.similarity, r.matched
  FROM ranked r
  JOIN agent_semantic m USING (id)
 ORDER BY r.score DESC, r.valid_from DESC, r.id DESC
 LIMIT :'row_limit'::bigint;
