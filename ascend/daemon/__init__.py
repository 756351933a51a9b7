"""What both daemons share: settings, certificates, start and end."""
