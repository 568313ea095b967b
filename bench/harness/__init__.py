"""What all suites share: contenders, rounds, servers, tables, facts about the machine."""
