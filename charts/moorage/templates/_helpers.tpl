{{/* The base of every name; 40 characters leave room for suffixes. A release may have dots in its name, a Service may not. */}}
{{- define "moorage.name" -}}
{{- .Release.Name | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "moorage.operator" -}}{{ include "moorage.name" . }}-operator{{- end -}}
{{- define "moorage.gateway" -}}{{ include "moorage.name" . }}-gateway{{- end -}}

{{- define "moorage.labels" -}}
{{ include "moorage.selector" . }}
app.kubernetes.io/part-of: moorage
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* What never changes over upgrades. */}}
{{- define "moorage.selector" -}}
app.kubernetes.io/name: moorage
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* repository@digest, else repository:tag. */}}
{{- define "moorage.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "moorage.controlImage" -}}
{{ include "moorage.image" (dict "image" .Values.image "root" .) }}
{{- end -}}

{{/* The restricted Pod Security Standard, for a pod and for its container. */}}
{{- define "moorage.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "moorage.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Where a pod goes; `apart`, where given, is what keeps several of a component from one node while there are others. */}}
{{- define "moorage.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .affinity }}
affinity: {{- toYaml .affinity | nindent 2 }}
{{- else if and .apart (gt (int .replicas) 1) }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "moorage.selector" .apart | nindent 14 }}
{{- end }}
{{- $own := dict "matchLabels" (include "moorage.selector" .apart | fromYaml) }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints:
{{- range . }}
  - {{- toYaml (ternary . (merge (dict "labelSelector" $own) .) (hasKey . "labelSelector")) | nindent 4 }}
{{- end }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "moorage.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
The gateway's address for pods of this namespace. The kubelet fills in the Service's ClusterIP: it works without a
cluster DNS, and sandboxes, which reach no DNS, are handed the same address.
*/}}
{{- define "moorage.gatewayUrl" -}}
{{- $prefix := include "moorage.gateway" . | upper | replace "-" "_" -}}
http://$({{ $prefix }}_SERVICE_HOST):$({{ $prefix }}_SERVICE_PORT)
{{- end -}}

{{/* The namespaces to watch, by comma; empty is all. */}}
{{- define "moorage.watched" -}}
{{- if .Values.tenancy.namespaced -}}{{ join "," .Values.tenancy.namespaces }}{{- end -}}
{{- end -}}

{{/* Not empty where all that a gateway keeps is elsewhere: journal, blobs and the key that signs heads. It needs no volume
then, and there may be several. */}}
{{- define "moorage.shared" -}}
{{- if and .Values.store.postgres.dsnSecretRef.name .Values.store.blobs.s3.bucket .Values.gateway.headKeySecretRef.name -}}
true
{{- end -}}
{{- end -}}

{{/* Refuses several gateways that would each keep something of their own, and says what to do. */}}
{{- define "moorage.replicable" -}}
{{- if and (gt (int .Values.gateway.replicas) 1) (not (include "moorage.shared" .)) -}}
{{- $lacking := list -}}
{{- if not .Values.store.postgres.dsnSecretRef.name -}}
{{- $lacking = append $lacking "store.postgres.dsnSecretRef.name (the journal in PostgreSQL)" -}}
{{- end -}}
{{- if not .Values.store.blobs.s3.bucket -}}
{{- $lacking = append $lacking "store.blobs.s3.bucket (blobs in a bucket)" -}}
{{- end -}}
{{- if not .Values.gateway.headKeySecretRef.name -}}
{{- $lacking = append $lacking "gateway.headKeySecretRef.name (one key for all that sign heads)" -}}
{{- end -}}
{{- fail (printf "gateway.replicas=%d also needs %s, since each would keep its own otherwise; docs/operations.md says how" (int .Values.gateway.replicas) (join ", " $lacking)) -}}
{{- end -}}
{{- end -}}

{{/* The service account's token for the API server, mounted in sight rather than by default. */}}
{{- define "moorage.apiToken" -}}
- name: api
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {expirationSeconds: 3607, path: token}
      - configMap:
          name: kube-root-ca.crt
          items: [{key: ca.crt, path: ca.crt}]
      - downwardAPI:
          items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]
{{- end -}}

{{/* "true" where the release brings PriorityClasses for sandboxes. They are cluster-scoped. */}}
{{- define "moorage.priorityClasses" -}}
{{- and .Values.sandbox.priorityClasses.create (not .Values.tenancy.namespaced) -}}
{{- end -}}

{{/* The PriorityClass of sandboxes of a scheduling.class (.class); empty: the cluster's default. */}}
{{- define "moorage.priorityClass" -}}
{{- $named := index .root.Values.sandbox.priorityClasses .class -}}
{{- if $named -}}
{{- $named -}}
{{- else if eq (include "moorage.priorityClasses" .root) "true" -}}
{{ include "moorage.name" .root }}-{{ .class }}
{{- end -}}
{{- end -}}

{{/* "true" where the release brings levels of flow control. They are cluster-scoped. */}}
{{- define "moorage.flowControl" -}}
{{- and .Values.flowControl.enabled (not .Values.tenancy.namespaced) -}}
{{- end -}}

{{/* Operator and gateway as subjects of a FlowSchema. */}}
{{- define "moorage.ownSubjects" -}}
- kind: ServiceAccount
  serviceAccount: {name: {{ include "moorage.operator" . | quote }}, namespace: {{ .Release.Namespace | quote }}}
- kind: ServiceAccount
  serviceAccount: {name: {{ include "moorage.gateway" . | quote }}, namespace: {{ .Release.Namespace | quote }}}
{{- end -}}

{{/* "true" where the API server guards sandboxes and what belongs to them. Policies are cluster-scoped. */}}
{{- define "moorage.sandboxPolicies" -}}
{{- and .Values.policies.enabled (not .Values.tenancy.namespaced) -}}
{{- end -}}
