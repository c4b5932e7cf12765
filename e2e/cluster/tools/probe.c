/* probe ADDRESS PORT: can a TCP connection be made from here?
 *
 * ADDRESS is IPv4 or IPv6, never a name (a static program can't look names up). Sends an HTTP request and prints what
 * comes back. Exit 0: connected. 1: refused, unreachable or no answer within 3 s. 2: bad arguments.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static const char request[] = "GET / HTTP/1.0\r\n\r\n";

static socklen_t parse(const char *text, int port, struct sockaddr_storage *out) {
  struct sockaddr_in *v4 = (struct sockaddr_in *)out;
  struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
  memset(out, 0, sizeof *out);
  if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    return sizeof *v4;
  }
  if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    return sizeof *v6;
  }
  return 0;
}

int main(int count, char **arguments) {
  struct timeval limit = {.tv_sec = 3};
  struct sockaddr_storage address;
  char answer[4096];
  socklen_t size = count == 3 ? parse(arguments[1], atoi(arguments[2]), &address) : 0;
  if (size == 0) {
    fputs("usage: probe ADDRESS PORT\n", stderr);
    return 2;
  }
  int handle = socket(address.ss_family, SOCK_STREAM, 0);
  setsockopt(handle, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  setsockopt(handle, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (handle < 0 || connect(handle, (struct sockaddr *)&address, size) < 0) {
    fprintf(stderr, "%s: %s\n", arguments[1], strerror(errno));
    return 1;
  }
  if (write(handle, request, sizeof request - 1) > 0) {
    ssize_t length;
    while ((length = read(handle, answer, sizeof answer)) > 0) {
      if (write(1, answer, length) < 0) {
        break;
      }
    }
  }
  return 0;
}
