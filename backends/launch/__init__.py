"""How engines are started so that the gateway can use them: launch configurations, their flags checked, rendered, sized, compared."""
