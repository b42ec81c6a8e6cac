-- Let the memories made from these turns say what the turns say now; their vectors go.
WITH episodic AS (
    UPDATE agent_episodic m
       SET text = t.payload ->> 'text', attributes = t.payload -> 'attributes',
           subjects = ARRAY(SELECT jsonb_array_elements_text(t.payload -> 'subjects')),
           embedding = NULL, embedded_by = NULL
      FROM agent_turns t
     WHERE m.source_turn = t.id AND t.id = ANY (:'turns'::uuid[])
    RETURNING m.id
), semantic AS (
    UPDATE agent_semantic m
       SET text = t.payload ->> 'text', attributes = t.payload -> 'attributes',
           subjects = ARRAY(SELECT jsonb_array_elements_text(t.payload -> 'subjects')),
           embedding = NULL, embedded_by = NULL
      FROM agent_turns t
     WHERE m.source_turn = t.id AND t.id = ANY (:'turns'::uuid[])
    RETURNING m.id
), procedural AS (
    UPDATE agent_procedural m
       SET cache_key = t.payload ->> 'cacheKey', value = t.payload -> 'value',
           subjects = ARRAY(SELECT jsonb_array_elements_text(t.payload -> 'subjects'))
      FROM agent_turns t
     WHERE m.source_turn = t.id AND t.id = ANY (:'turns'::uuid[])
    RETURNING m.id
)
SELECT (SELECT count(*) FROM episodic) + (SELECT count(*) FROM semantic) + (SELECT count(*) FROM procedural) AS memories;
