"""What `tokenloom doctor` looks at; each module returns findings, and imports only what is installed."""
