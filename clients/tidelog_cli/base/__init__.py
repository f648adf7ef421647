"""What every command uses: a connected client, output, exit codes, values of options."""
