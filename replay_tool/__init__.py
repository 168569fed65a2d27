"""`lmr-replay`: what happened, why, and what would have happened.

An analyst has a log (a database URL, a SQLite file, a JSONL file, a bundle) and questions. Every verb is one documented
function in `verbs/` that takes a `Log` and returns data; `screens/` turns that data into text and `main` prints either
the text or the same data as JSON.

    LOG --source.open_source--> Log --verbs.*--> data --screens.*--> text
                                                    `---as_json----> JSON

Nothing here needs torch: an analyst's laptop has none. Read in this order: `source` (what a LOG may be), `history` (a
log folded into incidents, generations and nodes), `counterfactual` (the same facts through today's rules), then the
verbs.
"""
