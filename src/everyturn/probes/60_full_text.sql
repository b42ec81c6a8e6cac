-- full text search
-- lost: turns and memories are found by vector only
-- way out: Use a server with tsvector and GIN indexes: PostgreSQL 14 or newer, or a service built on it.
CREATE TEMP TABLE doctor_text (
    body text,
    tsv  tsvector GENERATED ALWAYS AS (to_tsvector('english', body)) STORED
) ON COMMIT DROP;

CREATE INDEX ON doctor_text USING gin (tsv);

INSERT INTO doctor_text (body) VALUES ('The reviewer found a mutable default');

SELECT tsv @@ websearch_to_tsquery('english', 'finding reviewers OR mutable')
       AND ts_rank_cd(tsv, to_tsquery('simple', 'mutabl')) > 0
  FROM doctor_text;
