"""What people have today, read into the same facts: one reader an artefact kind.

A reader has `recognizes(head)` and `read(path, job)` (or `together(paths, job)`), and gives `Sighting`s: facts without
a place in a job. `placing` puts them into one: which node has which slot, when the run began, in what order they came.
"""
