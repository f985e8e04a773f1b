"""One server as text for other tools: shells, containers, systemd, clients, proxies. Pure: nothing is read or run."""
