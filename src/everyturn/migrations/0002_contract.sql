-- The storage contract: the conversation log, the tool registry, verdicts, eval datasets and stream events.
-- Memory follows in 0003_memory.sql. Names and columns are public: people and programs in other languages use them.

-- 1. The conversation log. Append-only; a conversation is read in the order of seq.

CREATE TABLE agent_turns (
    id            uuid PRIMARY KEY DEFAULT everyturn_uuid7(),
    conversation  uuid NOT NULL,
    agent         text NOT NULL,
    kind          text NOT NULL
                  CHECK (kind IN ('user', 'model', 'tool_call', 'tool_result', 'error')),
    payload       jsonb NOT NULL,
    embedding     vector(1024),
    created_at    timestamptz NOT NULL DEFAULT now(),
    seq           bigint GENERATED ALWAYS AS IDENTITY,
    embedded_by   text
);

COMMENT ON TABLE agent_turns IS 'Every turn an agent took: user input, model output, tool call, tool result, error.';
COMMENT ON COLUMN agent_turns.seq IS 'The read order of a conversation: the order of appending, not of the clock.';
COMMENT ON COLUMN agent_turns.embedded_by IS 'The embedder that made the vector; NULL where one is still owed.';

CREATE INDEX agent_turns_conv_time ON agent_turns (conversation, created_at);
CREATE INDEX agent_turns_conv_seq  ON agent_turns (conversation, seq);
CREATE INDEX agent_turns_embedding ON agent_turns USING hnsw (embedding vector_cosine_ops);
CREATE INDEX agent_turns_tool_time ON agent_turns (agent, (payload ->> 'toolName'), created_at)
    WHERE (payload ->> 'toolName') IS NOT NULL;
CREATE INDEX agent_turns_repo_time ON agent_turns (agent, (payload ->> 'repo'), created_at)
    WHERE (payload ->> 'repo') IS NOT NULL;
-- Only what people and models say: on every kind of turn this index would cost four times the append.
-- A short pending list: its pages stay in the index, and the append that finds it full has to empty it.
CREATE INDEX agent_turns_text ON agent_turns USING gin (everyturn_tsvector(payload ->> 'text'))
    WITH (gin_pending_list_limit = 1024)
    WHERE kind IN ('user', 'model');

-- The text of a turn that is embedded: what was said, or a tool result's text.
CREATE FUNCTION everyturn_turn_text(kind text, payload jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN kind IN ('user', 'model') THEN
            CASE WHEN jsonb_typeof(payload -> 'text') = 'string' THEN payload ->> 'text' END
        WHEN kind = 'tool_result' THEN
            CASE
                WHEN jsonb_typeof(payload -> 'text') = 'string' THEN payload ->> 'text'
                WHEN jsonb_typeof(payload -> 'body') = 'string' THEN payload ->> 'body'
                WHEN jsonb_typeof(payload -> 'result') = 'string' THEN payload ->> 'result'
            END
    END
$$;

-- The advisory lock of a conversation: held, for the length of a run, by the process that runs it.
CREATE FUNCTION everyturn_lock_key(conversation uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ('x' || right(replace(conversation::text, '-', ''), 16))::bit(64)::bigint
           # x'6576657279747572'::bit(64)::bigint
$$;

-- 2. The tool registry.

CREATE TABLE agent_tools (
    name         text NOT NULL,
    agent        text NOT NULL,
    schema       jsonb NOT NULL,
    impl_hash    text NOT NULL,
    rate_budget  jsonb NOT NULL DEFAULT '{}',
    updated_at   timestamptz NOT NULL DEFAULT now(),
    description  text,
    PRIMARY KEY (agent, name)
);

COMMENT ON COLUMN agent_tools.rate_budget IS '{window_seconds, max_calls}; {} is unlimited.';

-- 3. Verdicts. Each joins back to the turn it judges.

CREATE TABLE agent_evals (
    id            uuid PRIMARY KEY DEFAULT everyturn_uuid7(),
    turn_id       uuid NOT NULL REFERENCES agent_turns (id) ON DELETE CASCADE,
    evaluator     text NOT NULL,
    verdict       text NOT NULL CHECK (verdict IN ('good', 'bad', 'partial')),
    rationale     text,
    payload       jsonb,
    created_at    timestamptz NOT NULL DEFAULT now(),
    conversation  uuid
);

CREATE INDEX agent_evals_turn ON agent_evals (turn_id);
CREATE INDEX agent_evals_conversation ON agent_evals (conversation, turn_id);

-- The conversation is the turn's, whatever the writer said: it is what joins are made on.
CREATE FUNCTION everyturn_eval_conversation() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    SELECT t.conversation INTO NEW.conversation FROM agent_turns t WHERE t.id = NEW.turn_id;
    RETURN NEW;
END
$$;

CREATE TRIGGER agent_evals_conversation
    BEFORE INSERT OR UPDATE OF turn_id, conversation ON agent_evals
    FOR EACH ROW EXECUTE FUNCTION everyturn_eval_conversation();

-- 4. Eval datasets: cases are facts, datasets are snapshots, runs are results.

CREATE TABLE eval_case (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    source        text NOT NULL,
    prompt        text NOT NULL,
    context       jsonb NOT NULL DEFAULT '{}',
    reference     text,
    tags          text[] NOT NULL DEFAULT '{}',
    captured_at   timestamptz NOT NULL DEFAULT now(),
    captured_by   text NOT NULL,
    embedding     vector(1024),
    turn_id       uuid,
    content_hash  text NOT NULL DEFAULT '',
    embedded_by   text
);

COMMENT ON COLUMN eval_case.turn_id IS 'The turn it was captured from; retention may have removed that turn.';
COMMENT ON COLUMN eval_case.content_hash IS 'sha256, in hex, of the canonical prompt, context and reference.';

CREATE INDEX eval_case_tags_idx  ON eval_case USING gin (tags);
CREATE INDEX eval_case_embed_idx ON eval_case USING hnsw (embedding vector_cosine_ops);
CREATE INDEX eval_case_hash_idx  ON eval_case (content_hash);
CREATE INDEX eval_case_time_idx  ON eval_case (captured_at, id);
CREATE INDEX eval_case_turn_idx  ON eval_case (turn_id) WHERE turn_id IS NOT NULL;

CREATE TABLE eval_dataset (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name          text NOT NULL,
    version       int  NOT NULL CHECK (version > 0),
    case_ids      uuid[] NOT NULL,
    notes         text,
    published_at  timestamptz NOT NULL DEFAULT now(),
    UNIQUE (name, version)
);

CREATE INDEX eval_dataset_cases_idx ON eval_dataset USING gin (case_ids);

CREATE TABLE eval_replay (
    id          uuid PRIMARY KEY DEFAULT everyturn_uuid7(),
    dataset_id  uuid NOT NULL REFERENCES eval_dataset (id),
    model       text NOT NULL,
    prompt_rev  text NOT NULL,
    prompt      text,
    settings    jsonb NOT NULL DEFAULT '{}',
    scorers     text[] NOT NULL DEFAULT '{}',
    case_ids    uuid[] NOT NULL,
    trials      int NOT NULL DEFAULT 1 CHECK (trials > 0),
    seed        bigint,
    status      text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'finished', 'stopped')),
    started_at  timestamptz NOT NULL DEFAULT now(),
    ended_at    timestamptz
);

CREATE INDEX eval_replay_dataset_idx ON eval_replay (dataset_id, started_at);

CREATE TABLE eval_run (
    id             uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    dataset_id     uuid NOT NULL REFERENCES eval_dataset (id),
    case_id        uuid NOT NULL REFERENCES eval_case (id),
    model          text NOT NULL,
    prompt_rev     text NOT NULL,
    output         text NOT NULL,
    pass           boolean,
    judge_score    numeric(3, 2) CHECK (judge_score BETWEEN 0 AND 1),
    judge_reason   text,
    latency_ms     int NOT NULL,
    input_tokens   int NOT NULL,
    output_tokens  int NOT NULL,
    cost_usd       numeric(10, 6),
    ran_at         timestamptz NOT NULL DEFAULT now(),
    replay_id      uuid REFERENCES eval_replay (id),
    trial          int NOT NULL DEFAULT 1 CHECK (trial > 0),
    error          text,
    scores         jsonb,
    run_id         text,
    UNIQUE (replay_id, case_id, trial)
);

COMMENT ON COLUMN eval_run.cost_usd IS 'NULL where the price of the model is not known.';
COMMENT ON COLUMN eval_run.pass IS 'NULL where it is judged later, or the judge failed (error says how).';

CREATE INDEX eval_run_dataset_idx ON eval_run (dataset_id, model, prompt_rev);
CREATE INDEX eval_run_case_idx    ON eval_run (case_id);

-- Numbers by value, so that 1.0 and 1 hash alike; objects are sorted by jsonb itself.
CREATE FUNCTION everyturn_canonical(value jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN CASE jsonb_typeof(value)
        WHEN 'number' THEN to_jsonb(trim_scale(value::text::numeric))
        WHEN 'array' THEN
            (SELECT coalesce(jsonb_agg(everyturn_canonical(e) ORDER BY n), '[]')
               FROM jsonb_array_elements(value) WITH ORDINALITY AS a (e, n))
        WHEN 'object' THEN
            (SELECT coalesce(jsonb_object_agg(k, everyturn_canonical(v)), '{}')
               FROM jsonb_each(value) AS o (k, v))
        ELSE value
    END;
END
$$;

CREATE FUNCTION everyturn_case_hash(prompt text, context jsonb, reference text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT encode(sha256(convert_to(jsonb_build_object(
        'prompt', prompt,
        'context', everyturn_canonical(context),
        'reference', reference)::text, 'UTF8')), 'hex')
$$;

-- 5. Stream events, shared with programs in other languages. Order within a run is id.

CREATE TABLE agent_events (
    id                bigserial PRIMARY KEY,
    run_id            text NOT NULL,
    agent_id          text NOT NULL,
    agent_name        text,
    turn              integer,
    tool_name         text,
    tool_call_id      text,
    internal_call_id  text,
    event             jsonb NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX agent_events_run_idx   ON agent_events (run_id, created_at);
CREATE INDEX agent_events_agent_idx ON agent_events (agent_id, created_at);
CREATE INDEX agent_events_tool_idx  ON agent_events (tool_name, created_at);

-- 6. What may not change. `everyturn_redact` is the one way past these triggers. They let through the UPDATE that is
--    written in that function's body while it runs, as the call stack tells: a setting could be switched on by anybody,
--    and so could a function of that name be made elsewhere.

CREATE FUNCTION everyturn_refuse_change() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    stack     text;
    statement text;
    place     int;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        GET DIAGNOSTICS stack = PG_CONTEXT;
        -- This function's own line comes first, then the statement in quotation marks, then who runs it.
        stack := substr(stack, strpos(stack, E'\n') + 1);
        place := strpos(stack, ' everyturn_redact(');
        statement := regexp_replace(left(stack, place), '\n[^\n]*$', '');
        statement := rtrim(substr(statement, nullif(strpos(statement, 'UPDATE '), 0)), '"“”«»’ ' || chr(160));
        PERFORM FROM pg_catalog.pg_proc p
          WHERE p.oid = to_regprocedure(format('%I.%s', TG_TABLE_SCHEMA,
                                               substring(substr(stack, place + 1)
                                                         FROM '^everyturn_redact\(uuid\[\],text(?:\[\])?,text\)')))
            AND strpos(p.prosrc, statement) > 0;
        IF FOUND THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION '% of % is refused: %', TG_OP, TG_TABLE_NAME, TG_ARGV[0]
        USING ERRCODE = 'restrict_violation', HINT = TG_ARGV[1];
END
$$;

CREATE TRIGGER agent_turns_append_only
    BEFORE UPDATE OF id, seq, conversation, agent, kind, payload, created_at ON agent_turns
    FOR EACH ROW EXECUTE FUNCTION everyturn_refuse_change(
        'the conversation log is append-only.',
        'Append a new turn. To remove a secret call everyturn_redact(); to expire turns DELETE them.');

CREATE TRIGGER agent_turns_no_truncate
    BEFORE TRUNCATE ON agent_turns
    FOR EACH STATEMENT EXECUTE FUNCTION everyturn_refuse_change(
        'the conversation log is append-only.',
        'DELETE the turns that are to expire.');

CREATE TRIGGER eval_dataset_frozen
    BEFORE UPDATE OR DELETE ON eval_dataset
    FOR EACH ROW EXECUTE FUNCTION everyturn_refuse_change(
        'a published dataset is frozen.',
        'Publish a new version.');

CREATE TRIGGER eval_dataset_no_truncate
    BEFORE TRUNCATE ON eval_dataset
    FOR EACH STATEMENT EXECUTE FUNCTION everyturn_refuse_change(
        'a published dataset is frozen.',
        'Publish a new version.');

CREATE TRIGGER eval_case_append_only
    BEFORE UPDATE OF id, source, prompt, context, reference, captured_at, captured_by, turn_id, content_hash
    ON eval_case
    FOR EACH ROW EXECUTE FUNCTION everyturn_refuse_change(
        'a captured case never changes.',
        'Capture a new case and tag the old one superseded.');

CREATE TRIGGER eval_case_no_truncate
    BEFORE TRUNCATE ON eval_case
    FOR EACH STATEMENT EXECUTE FUNCTION everyturn_refuse_change(
        'a captured case never changes.',
        'DELETE the cases that no dataset holds.');

CREATE FUNCTION everyturn_case_before_insert() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NEW.content_hash := everyturn_case_hash(NEW.prompt, NEW.context, NEW.reference);
    RETURN NEW;
END
$$;

CREATE TRIGGER eval_case_content_hash
    BEFORE INSERT ON eval_case
    FOR EACH ROW EXECUTE FUNCTION everyturn_case_before_insert();

CREATE FUNCTION everyturn_case_before_delete() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    holder text;
BEGIN
    SELECT d.name || '@' || d.version INTO holder
      FROM eval_dataset d
     WHERE d.case_ids @> ARRAY[OLD.id]
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'Case % cannot be deleted: dataset % holds it.', OLD.id, holder
            USING ERRCODE = 'restrict_violation', HINT = 'Tag the case superseded instead.';
    END IF;
    RETURN OLD;
END
$$;

CREATE TRIGGER eval_case_held_by_dataset
    BEFORE DELETE ON eval_case
    FOR EACH ROW EXECUTE FUNCTION everyturn_case_before_delete();

-- Publishing locks its cases, so that none can be deleted between the check and the commit.
CREATE FUNCTION everyturn_dataset_before_insert() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    found_cases bigint;
BEGIN
    PERFORM 1 FROM eval_case c WHERE c.id = ANY (NEW.case_ids) ORDER BY c.id FOR KEY SHARE;
    GET DIAGNOSTICS found_cases = ROW_COUNT;
    IF found_cases <> cardinality(NEW.case_ids) THEN
        RAISE EXCEPTION 'Dataset %@% names % cases, of which % exist (a case may be named once).',
            NEW.name, NEW.version, cardinality(NEW.case_ids), found_cases
            USING ERRCODE = 'foreign_key_violation', HINT = 'Take case_ids from eval_case, each once.';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER eval_dataset_locks_cases
    BEFORE INSERT ON eval_dataset
    FOR EACH ROW EXECUTE FUNCTION everyturn_dataset_before_insert();

-- 7. Redaction: masks what a pattern matches, everywhere in the JSON of a turn, and drops the vector made of it.

CREATE FUNCTION everyturn_masked(value jsonb, pattern text, mask text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN CASE jsonb_typeof(value)
        WHEN 'string' THEN to_jsonb(regexp_replace(value #>> '{}', pattern, mask, 'g'))
        WHEN 'array' THEN
            (SELECT coalesce(jsonb_agg(everyturn_masked(e, pattern, mask) ORDER BY n), '[]')
               FROM jsonb_array_elements(value) WITH ORDINALITY AS a (e, n))
        WHEN 'object' THEN
            (SELECT coalesce(jsonb_object_agg(k, everyturn_masked(v, pattern, mask)), '{}')
               FROM jsonb_each(value) AS o (k, v))
        ELSE value
    END;
END
$$;

CREATE FUNCTION everyturn_redact(turn_ids uuid[], pattern text, mask text DEFAULT '[redacted]') RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    changed bigint;
BEGIN
    UPDATE agent_turns t
       SET payload = everyturn_masked(t.payload, pattern, mask), embedding = NULL, embedded_by = NULL
     WHERE t.id = ANY (turn_ids)
       AND t.payload <> everyturn_masked(t.payload, pattern, mask);
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END
$$;

COMMENT ON FUNCTION everyturn_redact(uuid[], text, text) IS
    'Masks every match of a regular expression in the strings of these turns; returns how many turns changed.';

-- 8. Rate budgets: lock, count, insert. A function takes a new snapshot for each statement, so that the count sees
--    every call that was committed before the lock was granted; one plain statement would not.

CREATE FUNCTION everyturn_call_within_budget(
    call_id uuid, call_conversation uuid, call_agent text, call_tool text, call_payload jsonb,
    window_seconds double precision, max_calls int
) RETURNS TABLE (seq bigint, created_at timestamptz, retry_after double precision)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    window_length interval := make_interval(secs => window_seconds);
    oldest timestamptz;
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'A rate budget needs the isolation level READ COMMITTED; this transaction is %.',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Its snapshot is older than the lock, so that calls would be counted wrongly.';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('everyturn budget ' || call_agent || ' ' || call_tool, 0));
    -- The call that has to leave the window before another may enter it.
    SELECT t.created_at INTO oldest
      FROM agent_turns t
     WHERE t.agent = call_agent
       AND t.payload ->> 'toolName' = call_tool
       AND t.kind = 'tool_call'
       AND t.created_at > clock_timestamp() - window_length
     ORDER BY t.created_at DESC
    OFFSET greatest(max_calls - 1, 0) LIMIT 1;
    IF FOUND OR max_calls = 0 THEN
        RETURN QUERY SELECT NULL::bigint, NULL::timestamptz,
            extract(epoch FROM coalesce(oldest, clock_timestamp()) + window_length - clock_timestamp())::float8;
        RETURN;
    END IF;
    RETURN QUERY
        INSERT INTO agent_turns AS t (id, conversation, agent, kind, payload, created_at)
        VALUES (call_id, call_conversation, call_agent, 'tool_call', call_payload, clock_timestamp())
        RETURNING t.seq, t.created_at, NULL::float8;
END
$$;
