"""Launch configurations: how engines are started so that the gateway can use them. Flags are checked, rendered, sized, and compared with
running engines."""
