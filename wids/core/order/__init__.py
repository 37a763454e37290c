"""The order in which samples are read: a pure function of (lengths, seed, epoch, rank, world).

    permutation   random bits -> permutations that never change
    lane          chunks of consecutive samples, mixed a window at a time
    epoch         a plan -> the one sequence of all samples, from any position on
    layout        a dataset -> where its shards begin; indices -> the shards they are in
    population    a dataset -> what is read of it, and its plan
    rank_epochs   a plan, a rank and an end -> the rank's indices, and their number
    cursor        set_epoch, load_state_dict, iterations -> which epoch is next, and from where
    progress      a population and a cursor -> iterations and states
    iteration     an iterator that knows its position
    state         a position as a dict, and back
    windowing     runs of consecutive samples -> windows of them
    mask          indices that are marked as repeated or not
    validation    arguments -> integers

numpy only, no I/O, no global random state. Permutations come from raw counter-based bits (Philox), so that an order
never changes with a numpy release.
"""
