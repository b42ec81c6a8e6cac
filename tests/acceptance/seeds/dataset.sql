SELECT id, case_ids FROM eval_dataset WHERE name=$1 AND version=$2
