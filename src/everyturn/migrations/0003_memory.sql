-- Memory: what happened, what is true, and how things are done. Each row was made by a `memory.*` turn of the log, in
-- the same transaction, and can be made again from it.

-- 1. The tables.

CREATE TABLE agent_episodic (
    id            uuid PRIMARY KEY DEFAULT everyturn_uuid7(),
    scope         text NOT NULL DEFAULT 'default',
    agent         text NOT NULL DEFAULT 'default',
    conversation  uuid,
    subjects      text[] NOT NULL DEFAULT '{}',
    text          text NOT NULL,
    attributes    jsonb NOT NULL DEFAULT '{}',
    embedding     vector(1024),
    embedded_by   text,
    occurred_at   timestamptz NOT NULL DEFAULT now(),
    created_at    timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz,
    source_turn   uuid,
    tsv           tsvector GENERATED ALWAYS AS (everyturn_tsvector(text)) STORED
);

COMMENT ON TABLE agent_episodic IS 'What happened, by time.';
COMMENT ON COLUMN agent_episodic.scope IS 'Whose memory it is: a user, a tenant, a project.';
COMMENT ON COLUMN agent_episodic.embedded_by IS 'The embedder that made the vector; NULL where one is still owed.';
COMMENT ON COLUMN agent_episodic.source_turn IS 'The turn of the log that holds this memory.';

CREATE TABLE agent_semantic (
    id             uuid PRIMARY KEY DEFAULT everyturn_uuid7(),
    scope          text NOT NULL DEFAULT 'default',
    agent          text NOT NULL DEFAULT 'default',
    subjects       text[] NOT NULL DEFAULT '{}',
    text           text NOT NULL,
    attributes     jsonb NOT NULL DEFAULT '{}',
    embedding      vector(1024),
    embedded_by    text,
    created_at     timestamptz NOT NULL DEFAULT now(),
    valid_from     timestamptz NOT NULL DEFAULT now(),
    valid_until    timestamptz,
    superseded_by  uuid,
    expires_at     timestamptz,
    source_turn    uuid,
    tsv            tsvector GENERATED ALWAYS AS (everyturn_tsvector(text)) STORED
);

COMMENT ON TABLE agent_semantic IS 'Facts. One is replaced by superseding it, never edited.';
COMMENT ON COLUMN agent_semantic.superseded_by IS 'The fact that replaced this one; NULL while it is current.';
COMMENT ON COLUMN agent_semantic.valid_until IS 'From when on the replacement was true.';
COMMENT ON COLUMN agent_semantic.embedded_by IS 'The embedder that made the vector; NULL where one is still owed.';
COMMENT ON COLUMN agent_semantic.source_turn IS 'The turn of the log that holds this memory.';

CREATE TABLE agent_procedural (
    id           uuid PRIMARY KEY DEFAULT everyturn_uuid7(),
    scope        text NOT NULL DEFAULT 'default',
    agent        text NOT NULL DEFAULT 'default',
    cache_key    text NOT NULL,
    subjects     text[] NOT NULL DEFAULT '{}',
    value        jsonb NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    source_turn  uuid,
    UNIQUE (scope, agent, cache_key)
);

COMMENT ON TABLE agent_procedural IS 'How-tos and caches, by exact key. The key counts as a subject.';
COMMENT ON COLUMN agent_procedural.source_turn IS 'The turn of the log that holds this value.';

-- A filtered search reads many vectors: they stay in the row, as far as a page holds it, instead of going to TOAST.
ALTER TABLE agent_episodic SET (toast_tuple_target = 8160);
ALTER TABLE agent_semantic SET (toast_tuple_target = 8160);

CREATE INDEX agent_episodic_embedding  ON agent_episodic USING hnsw (embedding vector_cosine_ops);
CREATE INDEX agent_episodic_tsv        ON agent_episodic USING gin (tsv);
CREATE INDEX agent_episodic_subjects   ON agent_episodic USING gin (subjects);
CREATE INDEX agent_episodic_attributes ON agent_episodic USING gin (attributes jsonb_path_ops);
CREATE INDEX agent_episodic_scope      ON agent_episodic (scope, occurred_at, id);
CREATE INDEX agent_episodic_agent      ON agent_episodic (agent, scope);
CREATE INDEX agent_episodic_embedder   ON agent_episodic (embedded_by);
CREATE INDEX agent_episodic_same_text  ON agent_episodic USING hash (text);
CREATE INDEX agent_episodic_source     ON agent_episodic (source_turn);

CREATE INDEX agent_semantic_embedding  ON agent_semantic USING hnsw (embedding vector_cosine_ops);
CREATE INDEX agent_semantic_tsv        ON agent_semantic USING gin (tsv);
CREATE INDEX agent_semantic_subjects   ON agent_semantic USING gin (subjects);
CREATE INDEX agent_semantic_attributes ON agent_semantic USING gin (attributes jsonb_path_ops);
CREATE INDEX agent_semantic_scope      ON agent_semantic (scope, valid_from, id);
CREATE INDEX agent_semantic_agent      ON agent_semantic (agent, scope);
CREATE INDEX agent_semantic_embedder   ON agent_semantic (embedded_by);
CREATE INDEX agent_semantic_same_text  ON agent_semantic USING hash (text);
CREATE INDEX agent_semantic_source     ON agent_semantic (source_turn);

CREATE INDEX agent_procedural_subjects ON agent_procedural USING gin (array_append(subjects, cache_key));
CREATE INDEX agent_procedural_source   ON agent_procedural (source_turn);

-- The turns that memory is made from.
CREATE INDEX agent_turns_memory ON agent_turns ((payload ->> 'toolName'), seq)
    WHERE (payload ->> 'toolName') IN ('memory.remember', 'memory.supersede', 'memory.forget');


-- 2. What a query asks for.

-- One row for each lexeme of a query, with its share of all the words and of the identifiers that were asked for.
-- An identifier weighs 1. What people also write in passing weighs less: a short number and words joined by case alone
-- (`HttpClient`, but `GitHub` too) 0.2, a hyphenated word or an abbreviation nothing.
CREATE FUNCTION everyturn_terms(question text)
RETURNS TABLE (lexeme text, term tsquery, word double precision, identifier double precision)
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS $$
    SELECT weighed.lexeme,
           weighed.term,
           1.0 / count(*) OVER (),
           weighed.weight / greatest(1, sum(weighed.weight) OVER ())
      FROM (
          SELECT asked.lexeme,
                 asked.term,
                 CASE
                     WHEN asked.lexeme ~ '^[[:digit:]]{1,3}[[:alpha:]]{0,2}$' THEN 0.2
                     WHEN asked.lexeme ~ '^[[:alpha:]]\.[[:alpha:]]$' OR asked.lexeme = 'and/or' THEN 0
                     WHEN asked.lexeme ~ '[[:digit:]_.:/#@+]' OR asked.lexeme ~ '-.*-' THEN 1
                     WHEN asked.lexeme ~ '-' THEN 0
                     WHEN asked.lexeme ~ '[\u0e00-\U0003ffff]' THEN 1
                     WHEN cut.positions IS NULL THEN 0.2
                     ELSE 0
                 END::double precision AS weight
            FROM (
                SELECT part::tsquery AS term, btrim(split_part(part, ':*', 1), '''') AS lexeme
                  FROM string_to_table(everyturn_tsquery(question)::text, ' | ') AS part
            ) AS asked
            LEFT JOIN unnest(everyturn_tsvector(left(question, 2000))) AS cut (lexeme, positions, weights)
              USING (lexeme)
      ) AS weighed
$$;

COMMENT ON FUNCTION everyturn_terms(text) IS
    'The lexemes of a query, each with its share of the words and of the identifiers asked for';

-- The identifiers of a query, any of which matches; the empty query where it has none.
CREATE FUNCTION everyturn_identifiers(question text) RETURNS tsquery
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET client_min_messages = warning
AS $$
    SELECT coalesce(string_agg(t.term::text, '|'), '')::tsquery
      FROM everyturn_terms(question) AS t
     WHERE t.identifier > 0
$$;

-- What to look for when words are all there is: any of the rarer lexemes of the query, as many as are expected in a
-- twentieth of the table's rows. The planner's statistics know the frequent ones; a lexeme they do not list is rare.
-- Not PARALLEL SAFE, on purpose: a recall is over before parallel workers have started, even those of the branches
-- of its plan that are never executed.
CREATE FUNCTION everyturn_rarer_terms(question text, relation text) RETURNS tsquery
LANGUAGE sql STABLE STRICT PARALLEL UNSAFE
SET client_min_messages = warning
AS $$
    SELECT coalesce(
               string_agg(chosen.term::text, '|') FILTER (WHERE chosen.place = 1 OR chosen.share <= 0.05), '')::tsquery
      FROM (
          SELECT t.term,
                 row_number() OVER by_frequency AS place,
                 sum(coalesce(known.frequency, 0)) OVER by_frequency AS share
            FROM everyturn_terms(question) AS t
            LEFT JOIN (
                SELECT e.lexeme, e.frequency
                  FROM pg_catalog.pg_stats AS s,
                       unnest(s.most_common_elems::text::text[], s.most_common_elem_freqs) AS e (lexeme, frequency)
                 WHERE s.schemaname = (SELECT n.nspname
                                         FROM pg_catalog.pg_class AS c
                                         JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
                                        WHERE c.oid = relation::regclass)
                   AND s.tablename = relation
                   AND s.attname = 'tsv'
                   AND e.lexeme IS NOT NULL
            ) AS known USING (lexeme)
          WINDOW by_frequency AS (ORDER BY coalesce(known.frequency, 0), t.lexeme ROWS UNBOUNDED PRECEDING)
      ) AS chosen
$$;


-- 3. The tables as the log tells them: what `rebuild` writes, and what they can be compared with at any time.
--    Each is one pass over the log with hash joins, however little the planner knows of the sizes.

CREATE FUNCTION everyturn_forgotten(memory_kind text) RETURNS TABLE (id uuid, seq bigint)
LANGUAGE sql STABLE
AS $$
    SELECT listed.id::uuid, t.seq
      FROM agent_turns t,
           jsonb_array_elements_text(t.payload -> 'ids') AS listed (id)
     WHERE t.payload ->> 'toolName' = 'memory.forget'
       AND t.kind = 'tool_result'
       AND NOT t.payload ? 'toolCallId'
       AND t.payload ->> 'kind' = memory_kind
$$;

CREATE FUNCTION everyturn_episodic_from_log() RETURNS TABLE (
    id uuid, scope text, agent text, conversation uuid, subjects text[], text text, attributes jsonb, embedding vector,
    embedded_by text, occurred_at timestamptz, created_at timestamptz, expires_at timestamptz, source_turn uuid
)
LANGUAGE sql STABLE
SET enable_nestloop = off
AS $$
    SELECT (t.payload ->> 'id')::uuid,
           t.payload ->> 'scope',
           t.payload ->> 'agent',
           (t.payload ->> 'conversation')::uuid,
           ARRAY(SELECT jsonb_array_elements_text(t.payload -> 'subjects')),
           t.payload ->> 'text',
           t.payload -> 'attributes',
           t.embedding,
           t.embedded_by,
           (t.payload ->> 'occurredAt')::timestamptz,
           t.created_at,
           (t.payload ->> 'expiresAt')::timestamptz,
           t.id
      FROM agent_turns t
     WHERE t.payload ->> 'toolName' = 'memory.remember'
       AND t.kind = 'tool_result'
       AND NOT t.payload ? 'toolCallId'
       AND t.payload ->> 'kind' = 'episodic'
       AND NOT EXISTS (SELECT FROM everyturn_forgotten('episodic') AS f
                        WHERE f.id = (t.payload ->> 'id')::uuid AND f.seq > t.seq)
$$;

CREATE FUNCTION everyturn_semantic_from_log() RETURNS TABLE (
    id uuid, scope text, agent text, subjects text[], text text, attributes jsonb, embedding vector, embedded_by text,
    created_at timestamptz, valid_from timestamptz, valid_until timestamptz, superseded_by uuid,
    expires_at timestamptz, source_turn uuid
)
LANGUAGE sql STABLE
SET enable_nestloop = off
AS $$
    SELECT (t.payload ->> 'id')::uuid,
           t.payload ->> 'scope',
           t.payload ->> 'agent',
           ARRAY(SELECT jsonb_array_elements_text(t.payload -> 'subjects')),
           t.payload ->> 'text',
           t.payload -> 'attributes',
           t.embedding,
           t.embedded_by,
           t.created_at,
           (t.payload ->> 'validFrom')::timestamptz,
           (next.payload ->> 'validFrom')::timestamptz,
           (next.payload ->> 'id')::uuid,
           (t.payload ->> 'expiresAt')::timestamptz,
           t.id
      FROM agent_turns t
      LEFT JOIN agent_turns next
        ON next.payload ->> 'toolName' = 'memory.supersede'
       AND next.kind = 'tool_result'
       AND NOT next.payload ? 'toolCallId'
       AND next.payload ->> 'supersedes' = t.payload ->> 'id'
     WHERE t.payload ->> 'toolName' IN ('memory.remember', 'memory.supersede')
       AND t.kind = 'tool_result'
       AND NOT t.payload ? 'toolCallId'
       AND t.payload ->> 'kind' = 'semantic'
       AND NOT EXISTS (SELECT FROM everyturn_forgotten('semantic') AS f
                        WHERE f.id = (t.payload ->> 'id')::uuid AND f.seq > t.seq)
$$;

CREATE FUNCTION everyturn_procedural_from_log() RETURNS TABLE (
    id uuid, scope text, agent text, cache_key text, subjects text[], value jsonb, created_at timestamptz,
    updated_at timestamptz, expires_at timestamptz, source_turn uuid
)
LANGUAGE sql STABLE
SET enable_nestloop = off
AS $$
    SELECT DISTINCT ON ((t.payload ->> 'id')::uuid)
           (t.payload ->> 'id')::uuid,
           t.payload ->> 'scope',
           t.payload ->> 'agent',
           t.payload ->> 'cacheKey',
           ARRAY(SELECT jsonb_array_elements_text(t.payload -> 'subjects')),
           t.payload -> 'value',
           (t.payload ->> 'createdAt')::timestamptz,
           t.created_at,
           (t.payload ->> 'expiresAt')::timestamptz,
           t.id
      FROM agent_turns t
     WHERE t.payload ->> 'toolName' = 'memory.remember'
       AND t.kind = 'tool_result'
       AND NOT t.payload ? 'toolCallId'
       AND t.payload ->> 'kind' = 'procedural'
       AND NOT EXISTS (SELECT FROM everyturn_forgotten('procedural') AS f
                        WHERE f.id = (t.payload ->> 'id')::uuid AND f.seq > t.seq)
     ORDER BY (t.payload ->> 'id')::uuid, t.seq DESC
$$;


-- Tells the client how many rows of a table have been written so far, while the statement still runs.
CREATE FUNCTION everyturn_rebuilding(memory_kind text, place bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF place % 1000 = 0 THEN
        RAISE INFO 'everyturn rebuilding % %', memory_kind, place;
    END IF;
    RETURN true;
END
$$;

-- Whether a turn must outlive retention, because memory could not be made again without it: it holds a memory that
-- still exists, it closed a fact that still exists, or it records that a memory went whose turns are still there.
CREATE FUNCTION everyturn_memory_needs(turn_id uuid, turn_seq bigint, turn_payload jsonb) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT CASE
        WHEN turn_payload ? 'toolCallId' THEN false
        WHEN turn_payload ->> 'toolName' IN ('memory.remember', 'memory.supersede') THEN
            EXISTS (SELECT FROM agent_episodic e WHERE e.source_turn = turn_id)
            OR EXISTS (SELECT FROM agent_semantic s WHERE s.source_turn = turn_id)
            OR EXISTS (SELECT FROM agent_procedural p WHERE p.source_turn = turn_id)
            OR EXISTS (SELECT FROM agent_semantic s WHERE s.id = (turn_payload ->> 'supersedes')::uuid)
        WHEN turn_payload ->> 'toolName' = 'memory.forget' THEN
            EXISTS (
                SELECT FROM agent_turns t
                 WHERE t.payload ->> 'toolName' IN ('memory.remember', 'memory.supersede')
                   AND t.seq < turn_seq
                   AND turn_payload -> 'ids' ? (t.payload ->> 'id'))
        ELSE false
    END
$$;

COMMENT ON FUNCTION everyturn_memory_needs(uuid, bigint, jsonb) IS
    'Whether retention must keep this turn, because memory could not be made again without it';


-- 4. Erasure: texts are taken out of what turns say, literally, wherever they are quoted; the vectors made of them are
--    dropped. What a turn is (its kind, ids, names and times) stays, whatever the texts are.

-- A text of fewer than 8 characters counts where it stands as a word of its own.
CREATE FUNCTION everyturn_without(value jsonb, quotes text[], mask text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    said text;
    quote text;
BEGIN
    CASE jsonb_typeof(value)
        WHEN 'string' THEN
            said := value #>> '{}';
            FOREACH quote IN ARRAY quotes LOOP
                IF strpos(said, quote) = 0 THEN
                    CONTINUE;
                ELSIF length(quote) >= 8 THEN
                    said := replace(said, quote, mask);
                ELSE
                    said := regexp_replace(
                        said,
                        '(?<![A-Za-z0-9_])' || regexp_replace(quote, '([^[:alnum:][:space:]])', '\\\1', 'g')
                            || '(?![A-Za-z0-9_])',
                        mask, 'g');
                END IF;
            END LOOP;
            RETURN to_jsonb(said);
        WHEN 'array' THEN
            RETURN (SELECT coalesce(jsonb_agg(everyturn_without(e, quotes, mask) ORDER BY n), '[]')
                      FROM jsonb_array_elements(value) WITH ORDINALITY AS a (e, n));
        WHEN 'object' THEN
            -- A key is a name, and stays, unless it is none that a program would give.
            RETURN (SELECT coalesce(
                               jsonb_object_agg(
                                   CASE WHEN k ~ '^\w+$' OR without = k THEN k ELSE without || ' ' || n END,
                                   everyturn_without(v, quotes, mask)),
                               '{}')
                      FROM jsonb_each(value) WITH ORDINALITY AS o (k, v, n),
                           LATERAL (SELECT everyturn_without(to_jsonb(k), quotes, mask) #>> '{}') AS named (without));
        ELSE
            RETURN value;
    END CASE;
END
$$;

CREATE FUNCTION everyturn_payload_without(payload jsonb, quotes text[], mask text) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT coalesce(jsonb_object_agg(
               k,
               CASE
                   WHEN payload ->> 'toolName' LIKE 'memory.%' AND NOT payload ? 'toolCallId' THEN
                       CASE
                           WHEN k IN ('text', 'attributes', 'subjects', 'value') THEN everyturn_without(v, quotes, mask)
                           -- A key is unique in its scope, masked or not.
                           WHEN k = 'cacheKey' AND everyturn_without(v, quotes, mask) <> v
                           THEN to_jsonb(mask || ' ' || (payload ->> 'id'))
                           ELSE v
                       END
                   WHEN k IN ('toolName', 'toolCallId', 'implHash', 'runId', 'resumes', 'promptRev', 'model',
                              'finishReason', 'type', 'stage', 'usage') THEN v
                   WHEN k = 'toolCalls' AND jsonb_typeof(v) = 'array' THEN
                       (SELECT coalesce(jsonb_agg(
                                   CASE WHEN call ? 'args'
                                        THEN call || jsonb_build_object(
                                                         'args', everyturn_without(call -> 'args', quotes, mask))
                                        ELSE call
                                   END
                                   ORDER BY n), '[]')
                          FROM jsonb_array_elements(v) WITH ORDINALITY AS c (call, n))
                   ELSE everyturn_without(v, quotes, mask)
               END), '{}')
      FROM jsonb_each(payload) AS p (k, v)
$$;

CREATE FUNCTION everyturn_redact(turn_ids uuid[], quotes text[], mask text) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    changed bigint;
BEGIN
    UPDATE agent_turns t
       SET payload = CASE
               WHEN quotes IS NOT NULL THEN everyturn_payload_without(t.payload, quotes, mask)
               ELSE t.payload || coalesce(
                   (SELECT jsonb_object_agg(k, CASE k WHEN 'subjects' THEN jsonb_build_array(mask)
                                                      ELSE to_jsonb(mask) END)
                      FROM unnest(ARRAY['text', 'attributes', 'subjects', 'value', 'cacheKey']) AS k
                     WHERE t.payload ? k), '{}')
           END,
           embedding = NULL,
           embedded_by = NULL
     WHERE t.id = ANY (turn_ids);
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END
$$;

COMMENT ON FUNCTION everyturn_redact(uuid[], text[], text) IS
    'Takes these texts, literally, out of what these turns say; NULL: what the turn of a memory remembers.';
