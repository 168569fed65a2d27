"""What people have today, read into the same facts: one reader an artefact kind.

A reader has `recognizes(path, head)` and `read(path, job)`, and yields `Sighting`s: facts without a place in a job. `job`
puts them into one: which node has which slot, when the run began, in what order they came.
"""
