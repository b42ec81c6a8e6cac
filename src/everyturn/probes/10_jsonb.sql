-- jsonb operators
-- lost: payloads cannot be asked for their keys
-- way out: Use a server with the full jsonb type: PostgreSQL 14 or newer, or a service built on it.
CREATE TEMP TABLE doctor_jsonb (payload jsonb NOT NULL) ON COMMIT DROP;

CREATE INDEX ON doctor_jsonb ((payload ->> 'toolName')) WHERE (payload ->> 'toolName') IS NOT NULL;

INSERT INTO doctor_jsonb VALUES ('{"toolName": "post", "usage": {"totalTokens": 3}, "tags": ["a"]}');

SELECT payload ->> 'toolName' = 'post'
       AND (payload -> 'usage' ->> 'totalTokens')::int = 3
       AND payload @> '{"tags": ["a"]}'
       AND payload ? 'usage'
       AND jsonb_path_exists(payload, '$.usage.totalTokens ? (@ > 2)')
  FROM doctor_jsonb;
