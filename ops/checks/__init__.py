"""What `draftmill doctor` looks at, in rooms: the machine, the services, the fleet, plans and accounts."""
