"""Agents, log, engine, network and clocks in one process, with seeds: the product's own code in a made-up world."""
