"""Faults on purpose: real ones, in real trainings, to see what becomes of them.

    effects       the 21 effects, and what each is here
    campaign      a TOML file that says which fault strikes which rank in which step
    marks         what has struck already: a repeated step is not struck twice
    inside/       the part that runs in trainers; cannot be imported unless `lmr inject` asks for it
    machine       what is done to a node from outside: its processes, its vault's memory, its network
    runner        starts the command, and does what trainers cannot do to themselves

Nothing of the engine, the store or the other integrations imports this package. Production runs never see it: the
only way in is a folder that `lmr inject` puts on PYTHONPATH of the command it starts.
"""
