"""Subject routing: sessions, accounts, the subscription index, permissions, imports and exports."""
