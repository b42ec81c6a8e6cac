-- Text search for prose, code, accents and CJK, made of what every Postgres has.
--
-- The default parser reads `HttpClient.get` as a host name, loses `CVE-2024-3094`, takes a CJK sentence for one word,
-- and needs quadratic time on text like `_a_a_a`. So the text is cut into lexemes here, and the parser only ever sees
-- words of letters and digits. Rows and queries go through the same function, whoever writes them.
--
-- everyturn_tsvector names nothing outside pg_catalog, so that it works in index expressions, REINDEX and pg_restore.

CREATE FUNCTION everyturn_tsvector(source text) RETURNS tsvector
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $function$
DECLARE
    -- A tsvector holds 1 MB: the limits below keep any text under it, so no text is refused.
    body text := left(source, 100000);
    bare text[] := '{}';  -- lexemes without positions: identifiers as they are written, pairs of CJK characters
    found text[] := '{}';
    joined text;
    cjk CONSTANT text :=
        '\u0e00-\u0fff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029'
        '\u3031-\u3035\u303b\u3040-\u30fa\u30fc-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f'
        '\uac00-\ud7ff\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003ffff';
    identifier CONSTANT text := '_*[[:alnum:]][[:alnum:]_]*(?:[.:/#@+-]+[[:alnum:]_]+)+|[[:alpha:]]+(?:\+\+|#)';
    compound CONSTANT text :=
        '_|[[:lower:]][[:upper:]]|[[:upper:]]{2}[[:lower:]]{2}|[[:digit:]][[:alpha:]]|[[:alpha:]][[:digit:]]';
BEGIN
    IF octet_length(body) <> char_length(body) THEN
        IF octet_length(body) > 200000 THEN
            body := left(body, 50000);
        END IF;
        -- Compatibility forms (ligatures, full width) become plain and accents go. NFC last, or Hangul falls apart.
        body := normalize(body, NFKD);
        body := regexp_replace(
            body,
            '[\u00ad\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670'
            '\u200c\u200d\u2060\ufeff]+',
            '', 'g');
        body := translate(body, 'łŁøØđĐħĦıς', 'lLoOdDhHiσ');
        body := replace(replace(replace(body, 'ß', 'ss'), 'æ', 'ae'), 'œ', 'oe');
        body := left(normalize(body, NFC), 100000);
        IF octet_length(body) > 200000 THEN
            body := left(body, 50000);
        END IF;

        IF body ~ ('[' || cjk || ']') THEN
            -- Every pair of neighbours, and the last character of a run alone: one character asks by prefix.
            bare := ARRAY(
                SELECT rtrim(here.c || coalesce(here.following, ''))
                FROM (
                    SELECT string_to_array(btrim(regexp_replace(body, '[^' || cjk || ']+', ' ', 'g')), NULL) AS chars
                ) AS runs,
                unnest(runs.chars, runs.chars[2:]) AS here (c, following)
                WHERE here.c <> ' '
            );
            body := regexp_replace(body, '[' || cjk || ']+', ' ', 'g');
        END IF;
    END IF;

    -- Identifiers as they are written, and their parts: `gh:o/r#7` is also `o/r#7` and `o/r`;
    -- `src/a.py:10` is also `src/a.py` and `a.py`.
    IF body ~ '[[:alnum:]_][.:/#@+-]+[[:alnum:]_]|[[:alpha:]](?:\+\+|#)' THEN
        found := ARRAY(SELECT match[1] FROM regexp_matches(body, identifier, 'g') AS match);
        joined := array_to_string(found, ' ');
        IF joined ~ '[:#@/]' THEN
            joined := translate(joined, ':', ' ') || ' ' || translate(joined, ':#@', '   ') || ' '
                || translate(joined, ':#@/', '    ');
            found := found || ARRAY(SELECT match[1] FROM regexp_matches(joined, identifier, 'g') AS match);
        END IF;
    END IF;

    -- Words joined by case, digits or underscores, whole and in their parts.
    body := regexp_replace(body, '[^[:alnum:]_]+', ' ', 'g');
    IF body ~ compound THEN
        found := found || ARRAY(
            SELECT word FROM unnest(string_to_array(body, ' ')) AS word
            WHERE char_length(word) > 1 AND word ~ compound AND word ~ '[[:alnum:]]'
        );
        body := regexp_replace(body, '([[:lower:]])([[:upper:]])', '\1 \2', 'g');
        body := regexp_replace(body, '([[:upper:]])([[:upper:]][[:lower:]][[:lower:]])', '\1 \2', 'g');
        body := replace(body, '_', ' ');
    END IF;
    bare := bare || ARRAY(SELECT lower(word) FROM unnest(found) AS word WHERE char_length(word) <= 200);

    -- Words are cut at 200 characters; the parser prints a notice for a word or a gap of more than 2 kB.
    IF octet_length(body) > 2000 THEN
        IF body ~ '[[:alnum:]]{201}' THEN
            body := regexp_replace(body, '([[:alnum:]]{200})[[:alnum:]]+', '\1', 'g');
        END IF;
        IF body ~ ' {201}' THEN
            body := regexp_replace(body, ' +', ' ', 'g');
        END IF;
    END IF;

    IF cardinality(bare) = 0 THEN
        RETURN to_tsvector('pg_catalog.english'::regconfig, body);
    END IF;
    IF cardinality(bare) > 600 AND octet_length(array_to_string(bare, ' ')) > 500000 THEN
        bare := ARRAY(
            SELECT kept.lexeme
            FROM (
                SELECT every.lexeme, sum(octet_length(every.lexeme) + 1) OVER (ORDER BY every.first) AS bytes
                FROM (
                    SELECT lexeme, min(place) AS first
                    FROM unnest(bare) WITH ORDINALITY AS b (lexeme, place)
                    GROUP BY lexeme
                ) AS every
            ) AS kept
            WHERE kept.bytes <= 500000
        );
    END IF;
    RETURN to_tsvector('pg_catalog.english'::regconfig, body) || array_to_tsvector(bare);
END;
$function$;

COMMENT ON FUNCTION everyturn_tsvector(text) IS
    'Lexemes of a text: English stems of its words, identifiers as written, pairs of CJK characters';


-- Any of the query's lexemes matches; recall gives them their weights. Nothing but stop words gives the empty query,
-- which matches no row.
CREATE FUNCTION everyturn_tsquery(source text) RETURNS tsquery
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET client_min_messages = warning  -- the empty query prints a notice
AS $function$
DECLARE
    lexemes text[];
BEGIN
    lexemes := tsvector_to_array(everyturn_tsvector(left(source, 2000)));
    lexemes := ARRAY(
        SELECT quote_literal(lexeme) || CASE WHEN lexeme ~ '^[\u0e00-\U0003ffff]$' THEN ':*' ELSE '' END
        FROM unnest(lexemes) AS lexeme
        -- The last character of a longer run is in its pair already.
        WHERE lexeme !~ '^[\u0e00-\U0003ffff]$'
            OR NOT EXISTS (SELECT FROM unnest(lexemes) AS pair WHERE right(pair, 1) = lexeme AND pair <> lexeme)
        ORDER BY char_length(lexeme) DESC, lexeme
        LIMIT 400
    );
    RETURN array_to_string(lexemes, '|')::tsquery;
END;
$function$;


-- Ids of rows written by hand. The server's own function where there is one (18), decided at run time so that a dump
-- can be restored into an older or a newer server; else milliseconds, then random bits, as RFC 9562 lays them out.
CREATE FUNCTION everyturn_uuid7() RETURNS uuid
LANGUAGE plpgsql VOLATILE PARALLEL SAFE
AS $function$
BEGIN
    IF current_setting('server_version_num')::integer >= 180000 THEN
        RETURN uuidv7();
    END IF;
    RETURN encode(
        set_bit(
            set_bit(
                overlay(
                    uuid_send(gen_random_uuid())
                    PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                    FROM 1 FOR 6
                ),
                52, 1),
            53, 1),
        'hex')::uuid;
END;
$function$;

COMMENT ON FUNCTION everyturn_uuid7() IS 'A new time-ordered UUID (version 7)';
