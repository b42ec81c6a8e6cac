-- How runs stand, what may be masked in what is stored, and which turns may go.

-- 1. Runs. A run without an end mark is running while a live process holds its conversation and no later run took it up.
--    Where that cannot be known (rows of other programs, connections through a transaction pooler) its age decides.

CREATE FUNCTION everyturn_run_status(run text, first_id bigint, last_id bigint) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    newest  record;
    oldest  jsonb;
    of_conversation uuid;
BEGIN
    SELECT e.event ->> 'type' AS type, e.created_at INTO newest FROM agent_events e WHERE e.id = last_id;
    IF newest.type = 'final' THEN
        RETURN 'finished';
    ELSIF newest.type = 'error' THEN
        RETURN 'failed';
    END IF;
    SELECT e.event INTO oldest FROM agent_events e WHERE e.id = first_id;
    IF oldest ->> 'conversation' ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' AND NOT oldest ? 'unguarded' THEN
        of_conversation := (oldest ->> 'conversation')::uuid;
        PERFORM
           FROM pg_catalog.pg_locks l
          WHERE l.locktype = 'advisory'
            AND l.objsubid = 1
            AND l.granted
            AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
            AND (l.classid::bigint << 32) | l.objid::bigint = everyturn_lock_key(of_conversation);
        IF FOUND AND run = (SELECT t.payload ->> 'runId'
                              FROM agent_turns t
                             WHERE t.conversation = of_conversation AND t.payload ? 'runId'
                             ORDER BY t.seq DESC
                             LIMIT 1) THEN
            RETURN 'running';
        END IF;
        RETURN 'cut off';
    END IF;
    RETURN CASE WHEN newest.created_at > clock_timestamp() - interval '15 minutes' THEN 'running' ELSE 'cut off' END;
END
$$;

COMMENT ON FUNCTION everyturn_run_status(text, bigint, bigint) IS
    'How a run stands, given its first and its last event: finished, failed, running or cut off.';


-- 2. Redaction of what is stored. What is masked was found outside, by rules that SQL has no words for; here it is made
--    sure that nothing else changes.

-- Whether the second value is the first with parts masked: the same shape, and every difference holds the mask.
CREATE FUNCTION everyturn_only_masked(old jsonb, new jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF old = new THEN
        RETURN true;
    ELSIF old IS NULL OR new IS NULL THEN
        RETURN false;
    ELSIF jsonb_typeof(new) = 'string' THEN
        RETURN strpos(new #>> '{}', '[redacted]') > 0;
    ELSIF jsonb_typeof(new) <> jsonb_typeof(old) THEN
        RETURN false;
    ELSIF jsonb_typeof(new) = 'array' THEN
        RETURN jsonb_array_length(old) = jsonb_array_length(new)
           AND (SELECT coalesce(bool_and(everyturn_only_masked(old -> n, new -> n)), true)
                  FROM generate_series(0, jsonb_array_length(new) - 1) AS n);
    ELSIF jsonb_typeof(new) = 'object' THEN
        RETURN (SELECT count(*) FROM jsonb_object_keys(old)) = (SELECT count(*) FROM jsonb_object_keys(new))
           AND (SELECT coalesce(bool_and(
                           CASE WHEN old ? k THEN everyturn_only_masked(old -> k, v) ELSE strpos(k, '[redacted]') > 0 END
                       ), true)
                  FROM jsonb_each(new) AS o (k, v));
    END IF;
    RETURN false;
END
$$;

-- The triggers know two more functions that may pass: those below. Otherwise as in 0002_contract.sql.
CREATE OR REPLACE FUNCTION everyturn_refuse_change() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    stack     text;
    statement text;
    place     int;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        GET DIAGNOSTICS stack = PG_CONTEXT;
        stack := substr(stack, strpos(stack, E'\n') + 1);
        place := strpos(stack, ' everyturn_redact(');
        statement := regexp_replace(left(stack, place), '\n[^\n]*$', '');
        statement := rtrim(substr(statement, nullif(strpos(statement, 'UPDATE '), 0)), '"“”«»’ ' || chr(160));
        PERFORM FROM pg_catalog.pg_proc p
          WHERE p.oid = to_regprocedure(format('%I.%s', TG_TABLE_SCHEMA,
                                               substring(substr(stack, place + 1)
                                                         FROM '^everyturn_redact\((?:uuid\[\],text(?:\[\])?,text'
                                                              '|uuid\[\],jsonb\[\]|uuid\[\],text\[\],jsonb\[\],text\[\])\)')))
            AND strpos(p.prosrc, statement) > 0;
        IF FOUND THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION '% of % is refused: %', TG_OP, TG_TABLE_NAME, TG_ARGV[0]
        USING ERRCODE = 'restrict_violation', HINT = TG_ARGV[1];
END
$$;

CREATE FUNCTION everyturn_redact(turn_ids uuid[], payloads jsonb[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    changed bigint;
BEGIN
    PERFORM FROM unnest(turn_ids, payloads) AS n (id, payload)
       JOIN agent_turns t ON t.id = n.id
      WHERE NOT everyturn_only_masked(t.payload, n.payload);
    IF FOUND THEN
        RAISE EXCEPTION 'Redaction only masks: a payload differs in more than what [redacted] stands for.'
            USING ERRCODE = 'restrict_violation';
    END IF;
    UPDATE agent_turns t
       SET payload = n.payload, embedding = NULL, embedded_by = NULL
      FROM unnest(turn_ids, payloads) AS n (id, payload)
     WHERE t.id = n.id
       AND t.payload <> n.payload;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END
$$;

COMMENT ON FUNCTION everyturn_redact(uuid[], jsonb[]) IS
    'Puts these payloads, the old ones with parts masked, in place of those of the turns; drops the vectors made of them.';

CREATE FUNCTION everyturn_redact(case_ids uuid[], prompts text[], contexts jsonb[], refs text[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    changed bigint;
BEGIN
    PERFORM FROM unnest(case_ids, prompts, contexts, refs) AS n (id, prompt, context, reference)
       JOIN eval_case c ON c.id = n.id
      WHERE NOT everyturn_only_masked(jsonb_build_array(c.prompt, c.context, c.reference),
                                      jsonb_build_array(n.prompt, n.context, n.reference));
    IF FOUND THEN
        RAISE EXCEPTION 'Redaction only masks: a case differs in more than what [redacted] stands for.'
            USING ERRCODE = 'restrict_violation';
    END IF;
    UPDATE eval_case c
       SET prompt = n.prompt, context = n.context, reference = n.reference, embedding = NULL, embedded_by = NULL,
           content_hash = everyturn_case_hash(n.prompt, n.context, n.reference)
      FROM unnest(case_ids, prompts, contexts, refs) AS n (id, prompt, context, reference)
     WHERE c.id = n.id;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END
$$;

COMMENT ON FUNCTION everyturn_redact(uuid[], text[], jsonb[], text[]) IS
    'Puts these contents, the old ones with parts masked, in place of those of the cases; drops the vectors.';


-- 3. Retention. Of the turns before a cut, those may go that no memory, current or superseded, is made from again.

CREATE FUNCTION everyturn_prunable(conversations uuid[], cuts bigint[], of_agent text, of_run text, most bigint)
RETURNS TABLE (id uuid, bytes bigint)
LANGUAGE sql STABLE AS $$
    SELECT t.id, (pg_column_size(t.payload) + coalesce(pg_column_size(t.embedding), 0) + 120)::bigint
      FROM unnest(conversations, cuts) AS c (conversation, before)
      JOIN agent_turns t ON t.conversation = c.conversation AND t.seq < c.before
     WHERE (of_agent IS NULL OR t.agent = of_agent)
       AND (of_run IS NULL OR t.payload ->> 'runId' = of_run)
       AND CASE
               WHEN t.kind <> 'tool_result' OR t.payload ? 'toolCallId' THEN true
               -- What a memory that still exists is made from.
               WHEN t.payload ->> 'toolName' = 'memory.remember' THEN
                   NOT EXISTS (SELECT FROM agent_episodic m
                                WHERE m.source_turn = t.id AND (m.expires_at IS NULL OR m.expires_at > now()))
                   AND NOT EXISTS (SELECT FROM agent_semantic m
                                    WHERE m.source_turn = t.id AND (m.expires_at IS NULL OR m.expires_at > now()))
                   AND NOT EXISTS (SELECT FROM agent_procedural m
                                    WHERE m.source_turn = t.id AND (m.expires_at IS NULL OR m.expires_at > now()))
               -- And what says that a fact is no longer current.
               WHEN t.payload ->> 'toolName' = 'memory.supersede' THEN
                   NOT EXISTS (SELECT FROM agent_semantic m
                                WHERE m.source_turn = t.id AND (m.expires_at IS NULL OR m.expires_at > now()))
                   AND NOT EXISTS (SELECT FROM agent_semantic m
                                    WHERE m.id = CASE WHEN t.payload ->> 'supersedes' ~ '^[0-9a-f-]{36}$'
                                                      THEN (t.payload ->> 'supersedes')::uuid END)
               -- A forgotten memory comes back when the word of its end goes before it does.
               WHEN t.payload ->> 'toolName' = 'memory.forget' THEN
                   NOT EXISTS (SELECT FROM agent_turns r
                                WHERE r.payload ->> 'toolName' IN ('memory.remember', 'memory.supersede')
                                  AND r.payload ->> 'id' IN (SELECT i #>> '{}' FROM jsonb_path_query(t.payload, '$.ids[*]') AS i))
               ELSE true
           END
     ORDER BY t.conversation, t.seq
     LIMIT most
$$;

COMMENT ON FUNCTION everyturn_prunable(uuid[], bigint[], text, text, bigint) IS
    'The turns of these conversations, before the cut of each, that retention may remove; with their bytes, near enough.';
