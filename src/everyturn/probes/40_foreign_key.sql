-- foreign keys that cascade
-- lost: verdicts outlive the turns they judge
-- way out: Use a server that enforces foreign keys; prune verdicts with their turns by hand until then.
CREATE TEMP TABLE doctor_turn (id int PRIMARY KEY) ON COMMIT DROP;

CREATE TEMP TABLE doctor_eval (turn_id int NOT NULL REFERENCES doctor_turn ON DELETE CASCADE) ON COMMIT DROP;

INSERT INTO doctor_turn VALUES (1);

INSERT INTO doctor_eval VALUES (1);

DELETE FROM doctor_turn;

SELECT count(*) = 0 FROM doctor_eval;
