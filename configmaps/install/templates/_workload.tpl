{{- /* A Deployment or a DaemonSet with its values. */ -}}
{{- define "workload" -}}
{{- $values := .values }}
{{- $root := .root.Values }}
{{- $pod := .object.spec.template.spec }}
{{- $container := first $pod.containers }}
{{- $_ := set $container "image"
  (printf "%s/%s:%s" $root.registry .object.metadata.name (default .root.Chart.AppVersion $root.tag)) }}
{{- $_ := set $container "env" (concat $container.env $values.env) }}
{{- $_ := set $container "resources" $values.resources }}
{{- range $field := list "nodeSelector" "tolerations" }}
{{- $_ := unset $pod $field }}
{{- with index $values $field }}{{ $_ := set $pod $field . }}{{ end }}
{{- end }}
{{- if $root.pullSecrets }}
{{- $secrets := list }}
{{- range $root.pullSecrets }}{{ $secrets = append $secrets (dict "name" .) }}{{ end }}
{{- $_ := set $pod "imagePullSecrets" $secrets }}
{{- end }}
{{- toYaml .object }}
{{- end }}
