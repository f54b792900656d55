"""The studies: tasks, models and measurements that are run from the command line.

``spo-fast experiment STUDY --out DIR`` runs one; each is a module of its own here, whose first lines say what
is asked and which outcome would count. Most need the extra ``spo-fast[experiments]``.
"""
